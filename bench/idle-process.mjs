// An application with one handler: prints its memory before its first job and after it. Plain JavaScript, so that no
// memory is spent on stripping types.
import { setTimeout as sleep } from 'node:timers/promises'

const SETTLE_MS = 3_000
const [name, module, databaseUrl] = process.argv.slice(2)
const done = Promise.withResolvers()

const OPEN = {
  async ichido({ defineKind, open }) {
    const ichido = await open({ databaseUrl })
    const kind = defineKind('idle')
    ichido.handle(kind, () => done.resolve())
    return { submit: () => ichido.submit(kind, {}), close: () => ichido.close() }
  },
  async 'pg-boss'({ PgBoss }) {
    const boss = new PgBoss({ connectionString: databaseUrl })
    await boss.start()
    await boss.createQueue('idle')
    await boss.work('idle', async () => done.resolve())
    return { submit: () => boss.send('idle', {}), close: () => boss.stop({ graceful: false }) }
  },
}

async function print() {
  await sleep(SETTLE_MS)
  console.log(process.memoryUsage.rss())
}

const app = await OPEN[name](await import(module))
await print()
await app.submit()
await done.promise
await print()
await app.close()
