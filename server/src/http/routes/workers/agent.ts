import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import type { FastifyInstance } from 'fastify'

/** In the package, where the build puts it. */
const BUILT = new URL('../../../agent.mjs', import.meta.url)
/** In a clone, what makes it. */
const BUNDLER = new URL('../../../../../scripts/bundle-agent.mjs', import.meta.url)

interface AgentFile {
  text: string
  etag: string
}

/** The agent as one file, for machines that are to become workers. It is public: it holds no secret. */
export function agentRoutes(app: FastifyInstance): void {
  let made: Promise<AgentFile> | null = null
  const agentFile = () => {
    made ??= makeAgent().catch((error: unknown) => {
      made = null
      throw error
    })
    return made
  }
  app.get('/agent.mjs', { config: { ability: 'public' }, schema: { hide: true } }, async (request, reply) => {
    const { text, etag } = await agentFile()
    reply.header('cache-control', 'no-cache').header('etag', etag)
    if (request.headers['if-none-match'] === etag) return reply.code(304).send()
    return reply.type('text/javascript; charset=utf-8').send(text)
  })
}

async function makeAgent(): Promise<AgentFile> {
  const text = import.meta.url.endsWith('.ts') ? await bundle() : await readFile(BUILT, 'utf8')
  return { text, etag: `"${createHash('sha256').update(text).digest('base64url')}"` }
}

async function bundle(): Promise<string> {
  const { bundleAgent } = (await import(BUNDLER.href)) as { bundleAgent(): Promise<string> }
  return bundleAgent()
}
