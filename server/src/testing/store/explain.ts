import { globSync } from 'node:fs'
import { join } from 'node:path'
import { leaseRuns, leaseRunsFrom } from '../../store/leasing/lease-runs.sql.ts'
import { type Command, command, type Store } from '../../store/port.ts'
import { allStatements, queryText, type Row, type Statement, type Step, type Work } from '../../store/statement.ts'

/** One node of a plan in the format of PostgreSQL's EXPLAIN (FORMAT JSON). */
export interface PlanNode {
  'Node Type': string
  'Index Name'?: string
  'Relation Name'?: string
  'Index Cond'?: string
  'TID Cond'?: string
  'Recheck Cond'?: string
  'Actual Rows'?: number
  'Actual Loops'?: number
  'Rows Removed by Filter'?: number
  'Rows Removed by Index Recheck'?: number
  'Rows Removed by Join Filter'?: number
  Plans?: PlanNode[]
}

const STORE = join(import.meta.dirname, '../../store')

/** All statements of the store that have a name. Tests that ran before in this process have made some of their own. */
export async function everyStatement(): Promise<Statement[]> {
  const exclude = ['*/*.test.ts', '*/*-thread.ts', 'conformance/*'].map((files) => join(STORE, files))
  for (const file of globSync(join(STORE, '*/*.ts'), { exclude })) await import(file)
  for (const lease of [leaseRuns, leaseRunsFrom]) lease(1)
  return allStatements().filter(({ name }) => !name.startsWith('test_'))
}

/** The generic plan of a statement, made with the settings of a node's transactions. */
export function keptPlan(store: Store, { postgres }: Statement): Promise<PlanNode> {
  return store.write(
    command('explain', function* work(): Work<PlanNode> {
      const count = Math.max(0, ...[...postgres.matchAll(/\$(\d+)/g)].map(([, n]) => Number(n)))
      yield* queryText(`PREPARE kept AS ${postgres}`)
      const nulls = count === 0 ? '' : `(${Array(count).fill('NULL').join()})`
      const [row] = yield* queryText(`EXPLAIN (FORMAT JSON) EXECUTE kept${nulls}`)
      yield* queryText('DEALLOCATE kept')
      return planOf(row)
    }),
  )
}

/** The executed plans of a reading command, one for each statement. */
export async function readPlans(store: Store, { work }: Command<unknown>): Promise<PlanNode[]> {
  const plans: PlanNode[] = []
  await store.read(
    command('explain', function* explained(): Work<void> {
      const inner = work(false)
      let next = inner.next()
      while (!next.done) {
        const [row] = yield analyzed(next.value)
        plans.push(planOf(row))
        next = inner.next(yield next.value)
      }
    }),
  )
  return plans
}

/** The executed plans of a writing command, which is rolled back. */
export async function writePlans(store: Store, { work }: Command<unknown>): Promise<PlanNode[]> {
  const plans: PlanNode[] = []
  const undo = new Error('This was a trial')
  const trial = command('explain', function* explained(): Work<void> {
    const inner = work(false)
    let next = inner.next()
    while (!next.done) {
      yield* queryText('SAVEPOINT trial')
      const [row] = yield analyzed(next.value)
      plans.push(planOf(row))
      yield* queryText('ROLLBACK TO SAVEPOINT trial')
      next = inner.next(yield next.value)
    }
    throw undo
  })
  await store.write(trial).catch((error: unknown) => {
    if (error !== undo) throw error
  })
  return plans
}

function analyzed(step: Step): Step {
  const postgres = `EXPLAIN (ANALYZE, FORMAT JSON) ${step.statement.postgres}`
  return { ...step, statement: { name: '', postgres, sqlite: [] } }
}

function planOf(row: Row | undefined): PlanNode {
  const plan: unknown = row?.['QUERY PLAN']
  const [top] = (typeof plan === 'string' ? JSON.parse(plan) : plan) as [{ Plan: PlanNode }]
  return top.Plan
}

export function nodes(plan: PlanNode): PlanNode[] {
  return [plan, ...(plan.Plans ?? []).flatMap(nodes)]
}

/** The indexes through which a plan reads a table; `whole` for a scan of the whole table. */
export function waysInto(plan: PlanNode, table: string): string[] {
  const scans = nodes(plan).filter((node) => node['Relation Name'] === table && node['Node Type'].endsWith('Scan'))
  const ways = scans.flatMap((scan) => {
    const bitmaps = (scan.Plans ?? []).filter((plan) => plan['Node Type'].startsWith('Bitmap')).flatMap(nodes)
    return [scan, ...bitmaps].flatMap((node) => node['Index Name'] ?? [])
  })
  const whole = scans.some((scan) => scan['Node Type'] === 'Seq Scan') ? ['whole'] : []
  return [...new Set([...ways, ...whole])].sort()
}

/** The number of rows that the scans of a plan read, including those that a filter removed. */
export function rowsTouched(plan: PlanNode): number {
  return nodes(plan)
    .filter((node) => /Scan$/.test(node['Node Type']) && node['Relation Name'] !== undefined)
    .reduce((sum, node) => {
      const removed = (node['Rows Removed by Filter'] ?? 0) + (node['Rows Removed by Index Recheck'] ?? 0)
      const rows = (node['Actual Rows'] ?? 0) + removed
      return sum + rows * (node['Actual Loops'] ?? 1)
    }, 0)
}
