// Turns the file of a CI system into the shell script of its steps.
import { parse } from 'yaml'
import type { Block } from './blocks.ts'

/** The environment variables of the systems, and on GitHub also its output file. */
const ENVIRONMENT = `
export GITHUB_OUTPUT=github-output GITHUB_SHA=4f2a91c GITHUB_REPOSITORY=acme/app GITHUB_RUN_ID=17
export CI_PROJECT_PATH=acme/app CI_COMMIT_SHA=4f2a91c CI_PIPELINE_ID=17
export JOB_NAME=acme/app GIT_COMMIT=4f2a91c BUILD_NUMBER=17
`
const EXPRESSIONS: Record<string, string> = {
  'github.repository': 'acme/app',
  'github.sha': '4f2a91c',
  'github.run_number': '17',
  'vars.ICHIDO_URL': 'http://127.0.0.1:8001',
  'secrets.ICHIDO_TOKEN': '',
}

export function scriptOf({ language, text }: Block): string {
  return ENVIRONMENT + (language === 'groovy' ? scriptOfJenkins(text) : scriptOfYaml(parse(text) as Yaml))
}

interface Yaml {
  env?: Record<string, string>
  jobs?: Record<string, { env?: Record<string, string>; steps?: { run?: string; env?: Record<string, string> }[] }>
  [job: string]: unknown
}

function scriptOfYaml({ env = {}, jobs, ...rest }: Yaml): string {
  if (jobs === undefined) return scriptOfGitlab(rest)
  return Object.values(jobs)
    .flatMap(({ env: ofJob = {}, steps = [] }) =>
      steps.map(({ run = '', env: ofStep = {} }) => `${exports({ ...env, ...ofJob, ...ofStep })}(set -e\n${run})\n`),
    )
    .join('')
    .replaceAll(/\$\{\{ *(.*?) *\}\}/g, (_, name: string) => {
      const value = EXPRESSIONS[name]
      if (value === undefined) throw new Error(`There is no value for ${name}`)
      return value
    })
}

function scriptOfGitlab(jobs: Record<string, unknown>): string {
  const scripts = Object.values(jobs).flatMap((job) => {
    const { script, variables = {} } = job as { script?: string[]; variables?: Record<string, string> }
    return script === undefined ? [] : [`${exports(variables)}(set -e\n${script.join('\n')}\n)\n`]
  })
  return scripts.join('')
}

function exports(env: Record<string, string>): string {
  return Object.entries(env)
    .map(([name, value]) => `export ${name}='${value}'\n`)
    .join('')
}

/** Takes the steps `sh '''…'''`. In the rest, the brackets must at least be balanced. */
function scriptOfJenkins(text: string): string {
  const steps = [...text.matchAll(/sh '''(.*?)'''/gs)].map(([, script = '']) => `(set -e\n${script})\n`)
  const rest = text.replaceAll(/'''.*?'''/gs, '').replaceAll(/'[^']*'/g, '')
  if (rest.split('{').length !== rest.split('}').length) throw new Error('Not as many { as }')
  return steps.join('')
}
