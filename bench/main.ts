// `npm run bench -- [quick] [suite …] [--json FILE]` compares Ichido with its peers, in one run on one machine.
import { writeFileSync } from 'node:fs'
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { Trouble } from '../scripts/boot/trouble.mjs'
import { busyByOthers, machineLine } from './machine.ts'
import { peerVersions } from './peers/packages.ts'
import { judge, table, type Verdict } from './report.ts'
import { LONG, QUICK, setStage } from './stage.ts'
import { NOT_QUICK, SUITES } from './suites/index.ts'

const usage = `usage: npm run bench -- [quick] [${Object.keys(SUITES).join('|')} …] [--json FILE]`
const say = (text: string) => process.stderr.write(`${text}\n`)

try {
  process.exitCode = await main()
} catch (error) {
  if (!(error instanceof Trouble)) throw error
  say(error.message)
  process.exitCode = 1
}

async function main(): Promise<number> {
  const { quick, names, json } = readArguments()
  const began = performance.now()
  const verdicts: Verdict[] = []
  const busy: number[] = []
  const stage = await setStage(quick ? QUICK : LONG, (text) => say(`· ${text}`))
  try {
    for (const name of names) {
      await stage.recycleLog()
      busy.push(await busyByOthers())
      const comparisons = await SUITES[name]?.(stage)
      verdicts.push(...(comparisons ?? []).map(judge))
    }
  } finally {
    await stage.close()
  }
  const machine = machineLine()
  const others = Math.max(...busy)
  console.log(`\n${table(verdicts)}\n`)
  console.log(`${machine}; ${peerVersions()}; ${Math.round((performance.now() - began) / 1000)} s`)
  if (others > 0.1)
    console.log(`Others used up to ${Math.round(others * 100)} % of this machine: trust the ratios, a little.`)
  if (json !== undefined) writeFileSync(json, `${JSON.stringify({ machine, others, verdicts }, null, 2)}\n`)
  return verdicts.every(({ met }) => met) ? 0 : 1
}

function readArguments(): { quick: boolean; names: string[]; json: string | undefined } {
  const { values, positionals } = parse()
  const names = positionals.filter((word) => word !== 'quick')
  const unknown = names.filter((name) => !Object.hasOwn(SUITES, name))
  if (unknown.length > 0) throw new Trouble(`There is no suite ${unknown.join(', ')}.\n${usage}`)
  const quick = positionals.includes('quick')
  const all = Object.keys(SUITES).filter((name) => !(quick && NOT_QUICK.has(name)))
  return {
    quick,
    names: names.length === 0 ? all : names,
    json: values.json === undefined ? undefined : resolve(values.json),
  }
}

function parse() {
  try {
    return parseArgs({ allowPositionals: true, options: { json: { type: 'string' } } })
  } catch (error) {
    throw new Trouble(`${error instanceof Error ? error.message : error}\n${usage}`)
  }
}
