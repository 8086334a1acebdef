export const DOCS_PATH = '/docs'

export interface DocsOptions {
  version: string
  publicUrl: string | null
  basePath: string
  cookieName: string
}
