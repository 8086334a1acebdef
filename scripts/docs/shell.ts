import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

/** Sends the commands of a clone to this process's command line. `npm start` does nothing, because the stage already runs. */
const PRELUDE = `
ichido() { source "$({ env -0; printf '\\0'; printf '%s\\0' "$@"; } | command curl -s --unix-socket "$DOCS_COMMAND_LINE" --data-binary @- http://docs/)"; }
npm() {
  case "$*" in
    'run -s ichido -- '*) shift 4; ichido "$@" ;;
    start) ;;
    *) echo "npm $*: not on this stage" >&2; return 127 ;;
  esac
}
python3() { "$DOCS_PYTHON" "$@"; }
curl() { command curl --max-time 60 "$@"; }
trap 'code=$?; [ "\${BASH_SOURCE[0]}" = "$DOCS_BLOCK" ] && echo "$code $LINENO" >> "$DOCS_BLOCK.failed"' ERR
`

export interface Printed {
  text: string
  /** The commands with an exit code other than 0. */
  failed: string[]
}

const END_WITHIN_MS = 10_000

/** A bash that runs the blocks of a page in order. */
export class Shell {
  readonly #process: ChildProcess
  readonly #lines: AsyncIterator<string>
  readonly #folder: string
  readonly #terminals: { at: string; name: string }[] = []
  #blocks = 0

  constructor(cwd: string, folder: string, env: NodeJS.ProcessEnv) {
    this.#folder = folder
    this.#process = spawn('bash', ['--noprofile', '--norc'], { cwd, env, stdio: ['pipe', 'pipe', 'inherit'] })
    if (this.#process.stdout === null) throw new Error('No output')
    this.#lines = createInterface(this.#process.stdout)[Symbol.asyncIterator]()
    this.#process.stdin?.write(PRELUDE)
  }

  /** Returns the output of both streams, or only stdout if a program reads it. */
  async run(script: string, streams: 'both' | 'stdout' = 'both'): Promise<Printed> {
    const name = this.#write(script)
    this.#process.stdin?.write(
      `DOCS_BLOCK=${name}; source ${name} >${name}.out ${streams === 'both' ? '2>&1' : '2>/dev/null'} </dev/null; echo done\n`,
    )
    const { done } = await this.#lines.next()
    if (done) throw new Error(`The shell ended: ${read(`${name}.out`)}`)
    return this.#printed(name)
  }

  /** Runs a script in the background. */
  begin(at: string, script: string): { hasSaid(): boolean } {
    const name = this.#write(script)
    this.#terminals.push({ at, name })
    const line = `{ (source ${name}) || echo $? 1 >${name}.failed; } >${name}.out 2>&1 </dev/null &`
    // The script gets its own process group, so that a signal reaches all of it.
    this.#process.stdin?.write(`set -m; ${line} set +m; terminals+=" -$!"\n`)
    return { hasSaid: () => read(`${name}.out`) !== '' || read(`${name}.failed`) !== '' }
  }

  /** Stops all background scripts, and returns their failures. */
  async end(): Promise<{ at: string; problem: string }[]> {
    this.#process.stdin?.end('kill -TERM -- $terminals 2>/dev/null; wait\n')
    const hung = setTimeout(() => this.#process.kill('SIGKILL'), END_WITHIN_MS)
    await once(this.#process, 'close')
    clearTimeout(hung)
    return this.#terminals.flatMap(({ at, name }) => {
      const { text, failed } = this.#printed(name)
      return failed.map((line) => ({ at, problem: `failed: ${line}\n${text}` }))
    })
  }

  #write(script: string): string {
    const name = join(this.#folder, `block-${++this.#blocks}`)
    writeFileSync(name, script)
    return name
  }

  #printed(name: string): Printed {
    const script = read(name).split('\n')
    const failed = read(`${name}.failed`)
      .split('\n')
      .filter(Boolean)
      .map((line) => {
        const [code, number] = line.split(' ')
        return `${script[Number(number) - 1]} (${code})`
      })
    return { text: read(`${name}.out`), failed }
  }
}

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8')
  } catch {
    return ''
  }
}
