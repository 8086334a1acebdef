import { compare } from '../contest/compare.ts'
import { drain } from '../contest/drain.ts'
import type { Entrant } from '../contest/entrant.ts'
import { submissions, withField } from '../contest/field.ts'
import { type ServerProcess, serve } from '../ichido/server-process.ts'
import { interleave } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const CALLERS = 64

/** One, two and four servers on one PostgreSQL. One process submits to all of them in turn, and works for all of them. */
export function nodes(stage: Stage): Promise<Comparison[]> {
  const { size, say, packages } = stage
  return withField(stage, 'nodes', ['floor'], async ({ floor }) => {
    const servers: ServerProcess[] = []
    const entrants: Record<string, Entrant> = {}
    try {
      for (const count of size.nodes) {
        const url = await stage.database(`nodes_${count}`)
        const started = []
        for (let i = 0; i < count; i++) started.push(await serve(url, {}, stage.program))
        servers.push(...started)
        const urls = started.map((server) => server.url).join(',')
        entrants[count] = await stage.enter({ program: 'ichido-http', url: urls, packages })
      }
      say(`${size.nodes.join(', ')} nodes on one PostgreSQL`)
      const limited = floor === undefined ? entrants : { ...entrants, floor }
      const jobs = Math.ceil(size.drained / 2)
      const submits = await interleave(
        size,
        measures(limited, (entrant, name) => entrant.run(submissions(name, CALLERS, size.roundMs))),
      )
      const workOff = (entrant: Entrant) => drain([entrant], { jobs, pace: 'bulk', handlerMs: 0 })
      const drains = await interleave(size, measures(limited, workOff))
      return size.nodes.flatMap((count) => [
        ...rows(`submit with key, ${CALLERS} callers`, count, submits),
        ...rows(`work off ${jobs.toLocaleString('en-US')} jobs`, count, drains),
      ])
    } finally {
      for (const entrant of Object.values(entrants)) await entrant.close()
      for (const server of servers) await server.stop()
    }
  })
}

function measures(
  entrants: Record<string, Entrant>,
  measure: (entrant: Entrant, name: string) => Promise<number>,
): Record<string, () => Promise<number>> {
  return Object.fromEntries(Object.entries(entrants).map(([name, entrant]) => [name, () => measure(entrant, name)]))
}

function rows(what: string, count: number, found: Record<string, number[]>): Comparison[] {
  const ours = found[count] ?? []
  const named = `${what}, ${count} ${count === 1 ? 'node' : 'nodes'}`
  const limit = compare({ what: named, unit: '/s', found: { http: ours, floor: found.floor ?? [] } })
  if (count === 1) return limit
  const row = { what: `${named}, over HTTP`, unit: '/s', ours, against: '1 node', rival: 'self', target: null } as const
  return [{ ...row, theirs: found[1] ?? [] }, ...limit]
}
