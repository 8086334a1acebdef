import { IchidoError } from '../../../protocol/index.ts'
import { forTerminal } from '../../../terminal.ts'
import { type RunningAgent, startAgent } from '../agent.ts'
import { BadOptions } from '../bad-options.ts'
import { readCommandLine, USAGE } from '../command-line.ts'
import { NotEnrolled, OtherWorker } from '../identity/identity.ts'
import { StateTaken } from '../identity/lock.ts'
import { nodeWorld } from '../world.ts'

/** What a terminal or systemd sends to the whole group comes again from npm, and from the script that npm runs. */
const SAME_SIGNAL_MS = 1_000

/** The agent as a program of its own. */
export async function runAgent(file: string): Promise<void> {
  const say = (line: string) => void process.stderr.write(`ichido-agent: ${forTerminal(line)}\n`)
  try {
    const options = readCommandLine(process.argv.slice(2), process.env)
    if (options === null) {
      process.stdout.write(`${USAGE}\n`)
      return
    }
    const why = await untilStopped(() => startAgent(options, { file, say }), say)
    if (why === null) return
    say(why)
    process.exitCode = 1
  } catch (error) {
    if (!isExpected(error)) throw error
    say(error.message)
    process.exitCode = error instanceof BadOptions ? 2 : 1
  }
}

/** SIGTERM and Ctrl-C drain; the second time they stop what runs. Before there is anything to drain they end it at once. */
export async function untilStopped(
  start: () => Promise<RunningAgent>,
  say: (line: string) => void,
): Promise<string | null> {
  let agent: RunningAgent | null = null
  let firstMs: number | null = null
  const stop = () => {
    if (agent === null) {
      say('stopped')
      process.exit(0)
    }
    const nowMs = nodeWorld.monotonic()
    if (firstMs !== null && nowMs - firstMs < SAME_SIGNAL_MS) return
    if (firstMs === null && agent.running() > 0)
      say('takes no more work and waits for its runs; press Ctrl-C again to stop them')
    firstMs ??= nowMs
    agent.stop()
  }
  // Heard from the first moment on in which it can have work in its hands: unheard, they would leave that behind.
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, stop)
  agent = await start()
  const why = await agent.ended
  if (why === null) say('stopped')
  return why
}

/** What is the user's to mend, in words for them. */
export function isExpected(error: unknown): error is Error {
  return [BadOptions, NotEnrolled, OtherWorker, StateTaken, IchidoError].some((expected) => error instanceof expected)
}
