import { execFile } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { ClientTools } from '../../../../scripts/testing/debian-packages.ts'

/** The verbatim clients of S0, and a text that identifies the block of each. */
export const S0_CLIENTS = {
  bash: { file: 's0-script.sh', language: 'bash', mark: '#!/bin/bash' },
  requests: { file: 's0-requests.py', language: 'python', mark: 'import requests' },
  aiohttp: { file: 's0-aiohttp.py', language: 'python', mark: 'import aiohttp' },
  actions: { file: 's0-actions.yml', language: 'yaml', mark: '$GITHUB_OUTPUT' },
} as const

export type S0Client = keyof typeof S0_CLIENTS

export const sourceOf = (client: S0Client): string => readFileSync(pathOf(client), 'utf8')

const pathOf = (client: S0Client) =>
  fileURLToPath(new URL(`../../http/compat/fixtures/${S0_CLIENTS[client].file}`, import.meta.url))

/** The address that the seed's client on requests calls. */
const REQUESTS_URL = 'http://localhost:8001'

export interface Ended {
  code: number
  output: string
}

export type Env = Readonly<Record<string, string>>

/** Runs the clients of S0 in a folder, each as a separate process. */
export class S0Runner {
  readonly #tools: ClientTools
  readonly #folder: string
  readonly #trust: Env

  /** @param trust environment variables that make the clients trust a certificate */
  constructor(tools: ClientTools, folder: string, trust: Env = {}) {
    this.#tools = tools
    this.#folder = folder
    this.#trust = trust
  }

  bash(url: string, config: string, env: Env = {}): Promise<Ended> {
    return this.#run(this.#tools.bash, [pathOf('bash'), config], { SIMPLETUNER_URL: url, ...env })
  }

  /** Without a URL it calls the seed's own address. */
  requests(config: string, { url = REQUESTS_URL, ...env }: Env = {}): Promise<Ended> {
    const source = sourceOf('requests').replace(REQUESTS_URL, url)
    return this.python(REQUESTS_DRIVER, [source, config], env)
  }

  aiohttp(call: object): Promise<Ended> {
    return this.python(AIOHTTP_DRIVER, [pathOf('aiohttp'), JSON.stringify(call)])
  }

  /** Does what GitHub's runner does with a step: fills in the expressions, and runs the rest with `bash -e`. */
  async actions(url: string, sha: string, runNumber: number): Promise<Ended & { outputs: string }> {
    const context: Env = {
      'github.repository': 'example/models',
      'github.sha': sha,
      'github.run_number': String(runNumber),
    }
    const [, indent = '', block = ''] = /^( *)run: \|\n((?:\1 +.*\n|\s*\n)+)/m.exec(sourceOf('actions')) ?? []
    const script = block
      .replaceAll(new RegExp(`^${indent}  `, 'gm'), '')
      .replaceAll(/\$\{\{ *([\w.]+) *\}\}/g, (_, name: string) => context[name] ?? '')
    const [file, outputs] = [join(this.#folder, 'step.sh'), join(this.#folder, 'outputs')]
    writeFileSync(file, script)
    writeFileSync(outputs, '')
    const ended = await this.#run(this.#tools.bash, ['-e', file], { SIMPLETUNER_URL: url, GITHUB_OUTPUT: outputs })
    return { ...ended, outputs: readFileSync(outputs, 'utf8') }
  }

  python(script: string, args: readonly string[], env: Env = {}): Promise<Ended> {
    return this.#run(this.#tools.python, ['-c', script, ...args], env)
  }

  /** Runs a line of shell with curl on its PATH. A bash whose input is a socket would read the user's own settings first. */
  shell(script: string): Promise<Ended> {
    return this.#run(this.#tools.bash, ['--norc', '-c', script], {})
  }

  /** The clients get nothing of the tests' environment, least of all a proxy. */
  #run(program: string, args: string[], env: Env): Promise<Ended> {
    const { PATH = '' } = process.env
    const options = { env: { PATH, ...this.#trust, ...env }, cwd: this.#folder }
    return new Promise((resolve) => {
      const child = execFile(program, args, options, (_, stdout, stderr) =>
        resolve({ code: child.exitCode ?? -1, output: stdout + stderr }),
      )
    })
  }
}

// S0 leaves its three exception classes to the user of the code.
const REQUESTS_DRIVER = `
import json, sys
class QuotaExceededError(Exception): pass
class TransientError(Exception): pass
class MaxRetriesExceeded(Exception): pass
exec(compile(sys.argv[1], 's0-requests.py', 'exec'))
try:
    print(json.dumps(submit_job_with_retry(sys.argv[2])))
except QuotaExceededError as error:
    print('quota:', error)
    sys.exit(3)
`

const AIOHTTP_DRIVER = `
import asyncio, dataclasses, json, runpy, sys
client = runpy.run_path(sys.argv[1])
result = asyncio.run(client['submit_cloud_job'](**json.loads(sys.argv[2])))
print(json.dumps(dataclasses.asdict(result)))
`
