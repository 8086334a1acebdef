/** Stands for the program that the reader inserts; no shell accepts the line with it. */
export const PLACEHOLDER = '<YOUR PROGRAM>'
const AGENT_FILE = 'ichido-agent.mjs'

interface AgentLine {
  url: string
  token: string
  name: string
  queues: readonly string[]
  /** The hash of the agent file. */
  sha256: string
}

/** The line that `ichido workers enroll` prints. A test compares both. */
export function agentLine({ url, token, name, queues, sha256 }: AgentLine): string {
  const asked = queues.flatMap((queue) => ['--queue', queue])
  const options = ['--url', url, '--enroll', token, '--name', name, ...asked, '--exec'].map(shellWord)
  const read = `require("fs").readFileSync("${AGENT_FILE}")`
  const why = `${AGENT_FILE} has changed since this line was printed. After an upgrade of the server, print a new line`
  const check = `node -e 'if(require("crypto").createHash("sha256").update(${read}).digest("hex")!=="${sha256}"){console.error("${why}");process.exit(1)}'`
  const fetching = `curl -fsSo ${AGENT_FILE} ${shellWord(`${url}/agent.mjs`)}`
  return `${fetching} && ${check} && node ${AGENT_FILE} ${options.join(' ')} ${PLACEHOLDER}`
}

export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`
}

/** Only pages over https or on this machine may hash. */
export const canHash = (): boolean => globalThis.crypto.subtle !== undefined

export async function hashOf(bytes: ArrayBuffer): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes))
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, '0')).join('')
}
