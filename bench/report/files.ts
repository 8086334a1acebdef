import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { withResults } from './markdown.ts'
import { picture } from './picture.ts'
import { type Results, results as schema } from './results.ts'

const beside = (jsonFile: string, ending: string) => jsonFile.replace(/\.json$/, ending)

/** Writes the results, their picture beside them, and their tables into the page of the same name, if there is one. */
export function writeResults(jsonFile: string, results: Results): void {
  writeFileSync(jsonFile, json(results))
  writeFileSync(beside(jsonFile, '.svg'), picture(results))
  const page = beside(jsonFile, '.md')
  if (existsSync(page)) writeFileSync(page, withResults(readFileSync(page, 'utf8'), results))
}

/** One line for each comparison, so that two runs can be compared line by line. */
function json({ rows, ...run }: Results): string {
  const lines = rows.map((row) => `    ${JSON.stringify(row)}`).join(',\n')
  return `${JSON.stringify(run, null, 2).replace(/\n}$/, '')},\n  "rows": [\n${lines}\n  ]\n}\n`
}

export const readResults = (jsonFile: string): Results => schema.parse(JSON.parse(readFileSync(jsonFile, 'utf8')))
