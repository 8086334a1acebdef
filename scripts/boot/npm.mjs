import { spawn } from 'node:child_process'
import { existsSync } from 'node:fs'
import { Trouble } from './trouble.mjs'

const QUIET = ['--loglevel=error', '--no-audit', '--no-fund', '--no-update-notifier', '--no-progress']
// npm's own pauses between retries add up to more than a minute when there is no network.
const IMPATIENT = ['--fetch-retries=2', '--fetch-retry-mintimeout=1000', '--fetch-retry-maxtimeout=4000']

const CAUSES = [
  [
    /EINTEGRITY/,
    'A package is not the one whose SHA-512 is in package-lock.json, so it was not installed. The registry, a proxy or a mirror has ' +
      'changed it, or the npm cache is damaged (`npm cache verify`). Do not go on before you know why.',
  ],
  [
    /sigstore|No dependencies found with signatures|[Nn]o (signing )?keys|EEXPIREDSIGNATUREKEY|tuf/,
    'The signatures could not be checked: this registry has none, or the public keys for them cannot be fetched from here. The SHA-512 ' +
      'of each package in package-lock.json was checked when it was installed.',
  ],
  [/ENOSPC|no space left/i, 'The disk is full. Free some space and run the same command again.'],
  [
    /SELF_SIGNED_CERT|UNABLE_TO_(GET_ISSUER_CERT|VERIFY_LEAF)|CERT_/,
    "The registry's certificate is not trusted. Behind a proxy of your own, set NODE_EXTRA_CA_CERTS to the file with its CA.",
  ],
  [
    /ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET|network/i,
    'The npm registry could not be reached. Check the network (and `npm config get proxy registry`), then run the same command again.',
  ],
  [/EACCES|EPERM|EROFS/, 'npm may not write here. Check who owns this folder, its .cache and the npm cache.'],
  [/E404|ETARGET|notarget/i, 'The npm registry in use does not have this package. See `npm config get registry`.'],
  [/EUSAGE/, 'package-lock.json does not match package.json. Run `npm install` and commit the lock file.'],
]

/** Applies to this process and every process that it starts. */
export function useNpm(cli, node) {
  process.env.npm_execpath = cli
  process.env.npm_node_execpath = node
}

/** Runs npm under the Node that it came with: distributions patch the two to fit each other. */
export function npmCommand() {
  const cli = process.env.npm_execpath
  if (cli && /npm-cli\.[cm]?js$/.test(cli) && existsSync(cli)) {
    const node = process.env.npm_node_execpath
    return [node && existsSync(node) ? node : process.execPath, cli]
  }
  return ['npm']
}

/** Runs npm silently. If it fails, the Trouble says what to do and quotes npm. */
export function runNpm(args, cwd) {
  const [command, ...first] = npmCommand()
  // On Windows npm is a .cmd file, which only a shell can start.
  const shell = process.platform === 'win32' && command === 'npm'
  return new Promise((resolve, reject) => {
    const child = spawn(command, [...first, ...args, ...QUIET, ...IMPATIENT], {
      cwd,
      shell,
      stdio: ['ignore', 'pipe', 'pipe'],
    })
    const kill = () => child.kill('SIGKILL')
    process.once('exit', kill)
    let output = ''
    const keep = (chunk) => {
      output = (output + chunk).slice(-8000)
    }
    child.stdout.on('data', keep)
    child.stderr.on('data', keep)
    child.on('error', (error) => {
      process.removeListener('exit', kill)
      reject(new Trouble(error.code === 'ENOENT' ? NO_NPM : `npm could not be started: ${error.message}`))
    })
    child.on('close', (code, signal) => {
      process.removeListener('exit', kill)
      if (code === 0) return resolve()
      reject(new Trouble(explain(args[0], output, code ?? signal)))
    })
  })
}

const NO_NPM = 'npm was not found on the PATH. Install Node.js 24 together with npm (https://nodejs.org) and run again.'

function explain(verb, output, code) {
  const cause = CAUSES.find(([pattern]) => pattern.test(output))
  const lines = output.trim().split('\n')
  const said = (cause ? lines.slice(0, 4) : lines.slice(-20)).join('\n')
  return [cause ? cause[1] : `npm ${verb} failed (${code}).`, said && `npm said:\n${said}`].filter(Boolean).join('\n')
}
