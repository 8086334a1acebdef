// Runs the command line inside this process, because starting a process for each command would take most of the time.
import { AsyncLocalStorage } from 'node:async_hooks'
import { writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'

interface Terminal {
  env: NodeJS.ProcessEnv
  print(stream: 1 | 2, text: string): void
}

const terminals = new AsyncLocalStorage<Terminal>()

/** Code that runs for a terminal uses the environment of that terminal, and prints to it. */
function hostTerminals(): void {
  const own = process.env
  const env = () => terminals.getStore()?.env ?? own
  process.env = new Proxy(own, {
    get: (_, name) => Reflect.get(env(), name),
    has: (_, name) => Reflect.has(env(), name),
    ownKeys: () => Reflect.ownKeys(env()),
    getOwnPropertyDescriptor: (_, name) => {
      const found = Reflect.getOwnPropertyDescriptor(env(), name)
      return found && { ...found, configurable: true }
    },
    set: (_, name, value) => Reflect.set(env(), name, value),
    deleteProperty: (_, name) => Reflect.deleteProperty(env(), name),
  })
  for (const [number, stream] of [
    [1, process.stdout],
    [2, process.stderr],
  ] as const) {
    stream.setMaxListeners(0)
    const write = stream.write.bind(stream)
    stream.write = ((chunk: string | Uint8Array, ...rest: []) => {
      const terminal = terminals.getStore()
      if (terminal === undefined) return write(chunk, ...rest)
      terminal.print(number, typeof chunk === 'string' ? chunk : Buffer.from(chunk).toString())
      return true
    }) as typeof stream.write
  }
}

/** Runs `run` and captures its output. */
export async function inTerminal<T>(
  env: NodeJS.ProcessEnv,
  print: Terminal['print'],
  run: () => Promise<T>,
): Promise<T> {
  return terminals.run({ env, print }, run)
}

export interface CommandLine {
  /** Shells send their command lines here, and get a script that prints the output and returns the exit code. */
  socket: string
  /** The number of running commands that have printed something. */
  talking(): number
  /** Sends Ctrl-C to all running commands. Before they have printed something, it would end this process. */
  interrupt(): Promise<void>
  close(): void
}

const SECOND_SIGNAL_MS = 1_050

export async function startCommandLine(folder: string): Promise<CommandLine> {
  hostTerminals()
  const { main } = await import('../../server/src/cli/program.ts')
  const running = new Map<Promise<unknown>, string[]>()
  let calls = 0
  const server = createServer(async (request, response) => {
    const sent = await text(request)
    const [env, args] = [sent.slice(0, sent.indexOf('\0\0')), sent.slice(sent.indexOf('\0\0') + 2)]
    const printed: string[] = []
    const command = inTerminal(
      Object.fromEntries(env.split('\0').map((line) => [line.split('=', 1)[0], line.slice(line.indexOf('=') + 1)])),
      (stream, words) => void printed.push(`printf %s ${quoted(words)} >&${stream}`),
      () => main(args.split('\0').slice(0, -1)),
    )
    running.set(command, printed)
    const code = await command
    running.delete(command)
    const script = join(folder, `${++calls}.replay`)
    writeFileSync(script, [...printed, `return ${code}`].join('\n'))
    response.end(script)
  })
  const socket = join(folder, 'command-line')
  await new Promise<void>((resolve) => server.listen(socket, resolve))
  return {
    socket,
    talking: () => [...running.values()].filter((printed) => printed.length > 0).length,
    async interrupt() {
      process.emit('SIGTERM')
      const hurry = setTimeout(() => process.emit('SIGTERM'), SECOND_SIGNAL_MS)
      await Promise.all(running.keys())
      clearTimeout(hurry)
      for (const signal of ['SIGTERM', 'SIGINT']) process.removeAllListeners(signal)
    },
    close: () => void server.close(),
  }
}

function quoted(words: string): string {
  return `'${words.replaceAll("'", `'\\''`)}'`
}
