import { shellWord } from '../self.ts'

/** What the authority's file is called on the other machine. */
export const AUTHORITY_FILE = 'ichido-ca.pem'

/** What stands for the program when nobody has named one: no shell takes a line that ends like this. */
export const PLACEHOLDER = '<YOUR PROGRAM>'

export interface AgentLine {
  url: string
  token: string
  /** By its name a second worker on the same machine has a state folder of its own. */
  name: string
  queues: readonly string[]
  exec: string | undefined
  /** By the authority's file that was copied there. */
  trusting: boolean
  /** Of the agent, as whoever prints the line was given it. */
  sha256: string
}

const AGENT_FILE = 'ichido-agent.mjs'

/** By Node, which is there anyway: sha256sum has other names on other systems. */
function checkLine(sha256: string): string {
  const read = `require("fs").readFileSync("${AGENT_FILE}")`
  const why = `${AGENT_FILE} has changed since this line was printed. After an upgrade of the server, print a new line`
  return `node -e 'if(require("crypto").createHash("sha256").update(${read}).digest("hex")!=="${sha256}"){console.error("${why}");process.exit(1)}'`
}

/** One line for any shell: curl fetches the agent, a single file, and Node checks and runs it. */
export function agentLine({ url, token, name, queues, exec, trusting, sha256 }: AgentLine): string {
  const asked = queues.flatMap((queue) => ['--queue', queue])
  const options = ['--url', url, '--enroll', token, '--name', name, ...asked, '--exec'].map(shellWord)
  // From anywhere: what the agent starts is in folders of its own, and takes the variable over.
  const by = (variable: string) => (trusting ? `${variable}="$PWD/${AUTHORITY_FILE}" ` : '')
  const fetching = `${by('CURL_CA_BUNDLE')}curl -fsSo ${AGENT_FILE} ${shellWord(`${url}/agent.mjs`)}`
  const program = exec === undefined ? PLACEHOLDER : shellWord(exec)
  const running = `${by('NODE_EXTRA_CA_CERTS')}node ${AGENT_FILE} ${options.join(' ')} ${program}`
  return `${fetching} && ${checkLine(sha256)} && ${running}`
}
