export const root: string
export const cacheDir: string
export function cached(name: string, text: string, fill: (folder: string) => Promise<void>): Promise<string>
export function fetchPackage(options: {
  what: string
  spec: string
  prepare?: (folder: string) => Promise<void>
}): Promise<string>
