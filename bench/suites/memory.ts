import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { promisify } from 'node:util'
import { drain } from '../contest/drain.ts'
import { serve } from '../ichido/server-process.ts'
import { memoryOf } from '../machine.ts'
import { interleave } from '../measure.ts'
import type { Comparison, Rival, Target } from '../report/comparison.ts'
import type { Published, Size, Stage } from '../stage.ts'

const run = promisify(execFile)
const PROGRAM = fileURLToPath(new URL('../memory-process.mjs', import.meta.url))
const MB = 1e6
const SAMPLE_MS = 50
const CALLERS = 64
const IDLE_MB = 100
const LOAD_MB = 300
const MOMENTS = ['before the first job', 'after the first job', 'under load'] as const
type Moment = (typeof MOMENTS)[number]
type Memory = Record<Moment, number>

/** The memory (RSS) of an application with each library, of the server and of a worker, idle and under load. */
export async function memory(stage: Stage): Promise<Comparison[]> {
  const published = await stage.published()
  return [...(await ofLibraries(stage, published.library)), ...(await ofServer(stage, published))]
}

interface Application {
  program: string
  module: string
  url(): Promise<string>
}

async function ofLibraries(stage: Stage, ichido: string): Promise<Comparison[]> {
  const { size, packages, database, redis, folder, say } = stage
  const peer = (file: string) => pathToFileURL(join(packages, 'node_modules', file)).href
  let stores = 0
  const fresh = () => database(`memory_${stores++}`)
  const applications: Record<string, Application> = {
    ours: { program: 'ichido', module: ichido, url: fresh },
    sqlite: { program: 'ichido', module: ichido, url: async () => folder(`memory-${stores++}`) },
    boss: { program: 'pg-boss', module: peer('pg-boss/dist/index.js'), url: fresh },
    graphile: { program: 'graphile-worker', module: peer('graphile-worker/dist/index.js'), url: fresh },
    bull: { program: 'bullmq', module: peer('bullmq/dist/cjs/index.js'), url: redis },
    bee: { program: 'bee-queue', module: peer('bee-queue/index.js'), url: redis },
    bare: { program: 'bare', module: peer('pg/lib/index.js'), url: fresh },
  }
  const present = Object.entries(applications).filter(([name]) => !stage.absent.has(name))
  say(`memory of an application: ${present.map(([, { program }]) => program).join(', ')}`)
  const measures = present.map(([name, each]) => [name, () => measure(each, size)] as const)
  const found = await interleave({ warmUps: 0, rounds: size.rounds }, Object.fromEntries(measures))
  return MOMENTS.flatMap((moment) => libraryRows(moment, found))
}

async function measure({ program, module, url }: Application, size: Size): Promise<Memory> {
  const args = [PROGRAM, program, module, await url(), String(size.settleMs), String(size.drained)]
  const printed = (await run(process.execPath, args)).stdout.trim().split('\n').map(Number)
  if (printed.length !== MOMENTS.length) throw new Error(`${program} did not print its memory`)
  return Object.fromEntries(MOMENTS.map((moment, i) => [moment, printed[i]])) as Memory
}

function libraryRows(moment: Moment, found: Record<string, Memory[]>): Comparison[] {
  const isIdle = moment === 'before the first job'
  const of = (name: string) => (found[name] ?? []).map((each) => each[moment])
  const row = (ours: string, theirs: string, against: string, rival: Rival, target: Target | null): Comparison => ({
    what: `memory of an application ${moment}, in process${ours === 'sqlite' ? ', SQLite' : ''}`,
    unit: 'MB',
    ours: of(ours),
    against,
    rival,
    theirs: of(theirs),
    target,
  })
  const rows = [
    row('ours', 'boss', 'pg-boss', 'peer', null),
    row('ours', 'graphile', 'graphile-worker', 'peer', null),
    row('ours', 'bull', 'BullMQ', 'peer', isIdle ? { most: 1.1 } : null),
    row('ours', 'bee', 'bee-queue', 'peer', null),
    row('ours', 'bare', 'limit: pg alone', 'limit', null),
    row('sqlite', 'ours', 'Ichido in process', 'self', isIdle ? { most: 1 } : null),
  ]
  return rows.filter(({ theirs }) => theirs.length > 0)
}

/** The server and a worker as they are published. Node alone takes half of the idle server's memory. */
async function ofServer(stage: Stage, { program, worker }: Published): Promise<Comparison[]> {
  const { size, packages, say } = stage
  say('memory of the server and of a worker, idle and under load')
  const server = await serve(await stage.database('memory_server'), {}, program)
  const load = await stage.enter({ program: 'ichido-http', url: server.url, packages })
  try {
    await sleep(size.settleMs)
    const idle = memoryOf(server.pid)
    let most = idle
    const sampling = setInterval(() => {
      most = Math.max(most, memoryOf(server.pid))
    }, SAMPLE_MS)
    for (let round = 0; round < size.rounds; round++) {
      await load.run({ callers: CALLERS, durationMs: size.roundMs, batch: 1, keyed: true })
      await drain([load], { jobs: size.drained, pace: 'bulk', handlerMs: 0 })
    }
    clearInterval(sampling)
    const rows = [bounded('the idle server', idle, IDLE_MB), bounded('the server under load', most, LOAD_MB)]
    if (worker === null) return rows
    const found = await measure({ program: 'worker', module: worker, url: async () => server.url }, size)
    return [
      ...rows,
      bounded('an idle worker', found['before the first job'], IDLE_MB, false),
      bounded('a worker under load', found['under load'], LOAD_MB, false),
    ]
  } finally {
    await load.close()
    await server.stop()
  }
}

function bounded(what: string, value: number, bound: number, isTarget = true): Comparison {
  const against = isTarget ? `at most ${bound} MB` : `the server's ${bound} MB`
  const target = isTarget ? { most: 1 } : null
  return { what: `memory of ${what}`, unit: 'MB', ours: [value], against, rival: 'self', theirs: [bound * MB], target }
}
