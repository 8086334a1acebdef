// `npm run bench -- [quick] [suite …] [--json FILE]` compares Ichido with its peers, in one run on one machine.
import { resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { Trouble } from '../scripts/boot/trouble.mjs'
import { busyByOthers, machineLine } from './machine.ts'
import { peerVersions } from './peers/packages.ts'
import { judge } from './report/comparison.ts'
import { readResults, writeResults } from './report/files.ts'
import { QUIET_MAX, type Results, toRow } from './report/results.ts'
import { textTable } from './report/text-table.ts'
import { LONG, QUICK, setStage } from './stage.ts'
import { NOT_QUICK, SUITES } from './suites/index.ts'

const usage = `usage: npm run bench -- [quick] [${Object.keys(SUITES).join('|')} …] [--json FILE.json]
       npm run bench -- picture FILE.json`
const say = (text: string) => process.stderr.write(`${text}\n`)

try {
  process.exitCode = await main()
} catch (error) {
  if (!(error instanceof Trouble)) throw error
  say(error.message)
  process.exitCode = 1
}

interface Arguments {
  quick: boolean
  names: string[]
  json: string | undefined
}

async function main(): Promise<number> {
  const { values, positionals } = parse()
  const json = values.json === undefined ? undefined : jsonFile(values.json)
  if (positionals[0] === 'picture') {
    const file = jsonFile(positionals[1] ?? '')
    writeResults(file, readResults(file))
    return 0
  }
  const results = await measure({ ...suitesIn(positionals), json })
  console.log(`\n${textTable(results.rows)}\n`)
  console.log(`${results.machine}; ${results.peers}; ${results.seconds} s`)
  if (results.others > QUIET_MAX)
    console.log(`Others used up to ${Math.round(results.others * 100)} % of this machine: trust the ratios, a little.`)
  return results.failed.length === 0 && results.rows.every(({ met }) => met) ? 0 : 1
}

/** Writes the file after each suite: a run takes hours, and an error in one suite must not lose the others. */
async function measure({ quick, names, json }: Arguments): Promise<Results> {
  const began = performance.now()
  const results: Results = {
    date: new Date().toISOString().slice(0, 10),
    mode: quick ? 'quick' : 'long',
    machine: machineLine(),
    peers: peerVersions(),
    seconds: 0,
    others: 0,
    failed: [],
    rows: [],
  }
  const stage = await setStage(quick ? QUICK : LONG, (text) => say(`· ${text}`))
  try {
    for (const name of names) {
      await stage.recycleLog()
      results.others = Math.max(results.others, await busyByOthers())
      try {
        const comparisons = await SUITES[name]?.(stage)
        results.rows.push(...(comparisons ?? []).map((each) => toRow(name, judge(each))))
      } catch (error) {
        say(`The suite ${name} ended with an error: ${error instanceof Error ? error.stack : error}`)
        results.failed.push(name)
      }
      results.seconds = Math.round((performance.now() - began) / 1000)
      if (json !== undefined) writeResults(json, results)
    }
  } finally {
    await stage.close()
  }
  return results
}

function suitesIn(words: readonly string[]): { quick: boolean; names: string[] } {
  const names = words.filter((word) => word !== 'quick')
  const unknown = names.filter((name) => !Object.hasOwn(SUITES, name))
  if (unknown.length > 0) throw new Trouble(`There is no suite ${unknown.join(', ')}.\n${usage}`)
  const quick = words.includes('quick')
  const all = Object.keys(SUITES).filter((name) => !(quick && NOT_QUICK.has(name)))
  return { quick, names: names.length === 0 ? all : names }
}

function jsonFile(path: string): string {
  if (!path.endsWith('.json')) throw new Trouble(`The file of the results must end with .json.\n${usage}`)
  return resolve(path)
}

function parse() {
  try {
    return parseArgs({ allowPositionals: true, options: { json: { type: 'string' } } })
  } catch (error) {
    throw new Trouble(`${error instanceof Error ? error.message : error}\n${usage}`)
  }
}
