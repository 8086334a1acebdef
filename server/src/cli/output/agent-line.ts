import { shellWord } from '../self.ts'

/** The name of the authority's file on the other machine. */
export const AUTHORITY_FILE = 'ichido-ca.pem'

/** Stands for a program that was not named; no shell accepts the line with it. */
export const PLACEHOLDER = '<YOUR PROGRAM>'

interface AgentLine {
  url: string
  token: string
  /** A second worker on the same machine needs another name. */
  name: string
  queues: readonly string[]
  exec: string | undefined
  /** True: the line uses the authority's file that was copied there. */
  trusting: boolean
  /** The hash of the agent file. */
  sha256: string
}

const AGENT_FILE = 'ichido-agent.mjs'

/** Uses Node, because sha256sum has other names on other systems. */
function checkLine(sha256: string): string {
  const read = `require("fs").readFileSync("${AGENT_FILE}")`
  const why = `${AGENT_FILE} has changed since this line was printed. After an upgrade of the server, print a new line`
  return `node -e 'if(require("crypto").createHash("sha256").update(${read}).digest("hex")!=="${sha256}"){console.error("${why}");process.exit(1)}'`
}

/** One line for any shell: curl fetches the agent file, and Node checks and runs it. */
export function agentLine({ url, token, name, queues, exec, trusting, sha256 }: AgentLine): string {
  const asked = queues.flatMap((queue) => ['--queue', queue])
  const options = ['--url', url, '--enroll', token, '--name', name, ...asked, '--exec'].map(shellWord)
  // An absolute path, because the agent's programs inherit the variable and run in other folders.
  const by = (variable: string) => (trusting ? `${variable}="$PWD/${AUTHORITY_FILE}" ` : '')
  const fetching = `${by('CURL_CA_BUNDLE')}curl -fsSo ${AGENT_FILE} ${shellWord(`${url}/agent.mjs`)}`
  const program = exec === undefined ? PLACEHOLDER : shellWord(exec)
  const running = `${by('NODE_EXTRA_CA_CERTS')}node ${AGENT_FILE} ${options.join(' ')} ${program}`
  return `${fetching} && ${checkLine(sha256)} && ${running}`
}
