import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { Stage } from './stage.ts'

const SOURCE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

interface Finding {
  id: string
  impact: string | null
  nodes: { html: string; failureSummary?: string }[]
}

/** The serious and critical findings of axe-core on the page as it is drawn now. */
export async function barriers({ page }: Pick<Stage, 'page'>): Promise<string[]> {
  // The policy of the page refuses a script element. Code of the debugger may run.
  await page.evaluate(SOURCE)
  const found = await page.evaluate<{ violations: Finding[]; passes: unknown[] }>('axe.run()')
  if (found.passes.length === 0) throw new Error('axe-core looked at nothing')
  return found.violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) =>
      nodes.map(({ html, failureSummary }) => `${id}: ${html.slice(0, 200)} ${failureSummary}`),
    )
}
