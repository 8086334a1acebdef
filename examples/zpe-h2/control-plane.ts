import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { Trouble } from '../../scripts/boot/trouble.mjs'
import { selfSigned } from '../../server/src/testing/http/certificate.ts'

export interface ControlPlane {
  url: string
  /** The certificate that clients must trust. */
  certificate: string
  certificateFile: string
  tokens: { operator: string; submitter: string }
  stop(): Promise<void>
}

const run = promisify(execFile)
const BIN = fileURLToPath(new URL('../../server/src/cli/bin.ts', import.meta.url))
const CLI = ['--conditions=ichido-source', BIN]

/** Starts `ichido serve` over TLS, on a free port by default, with its own store in the folder. */
export async function startControlPlane(folder: string, wanted = 0): Promise<ControlPlane> {
  const { cert, key } = selfSigned()
  const [certificateFile, keyFile] = [join(folder, 'cert.pem'), join(folder, 'key.pem')]
  writeFileSync(certificateFile, cert)
  writeFileSync(keyFile, key, { mode: 0o600 })

  const { PATH = '', HOME = '' } = process.env
  const env = { PATH, HOME, DATA_DIR: join(folder, 'data'), TLS_CERT_FILE: certificateFile, TLS_KEY_FILE: keyFile }
  const token = async (role: string): Promise<string> => {
    const args = [...CLI, 'token', 'create', '--user', role, '--role', role, '--json']
    const { stdout } = await run(process.execPath, args, { env })
    return (JSON.parse(stdout) as { token: string }).token
  }
  const tokens = { operator: await token('operator'), submitter: await token('submitter') }

  const child = spawn(process.execPath, [...CLI, 'serve', '--json'], {
    env: { ...env, PORT: String(wanted) },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const ended = once(child, 'exit')
  const said = once(createInterface(child.stdout), 'line') as Promise<[line: string]>
  const [line] = (await Promise.race([said, ended])) as [string | number | null]
  if (typeof line !== 'string') throw new Trouble(`The control plane did not start; it ended with ${line}.`)
  const { port } = new URL((JSON.parse(line) as { url: string }).url)
  return {
    // The certificate is for this name.
    url: `https://localhost:${port}`,
    certificate: cert,
    certificateFile,
    tokens,
    async stop() {
      child.kill('SIGTERM')
      await ended
    },
  }
}
