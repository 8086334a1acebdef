import { z } from 'zod'
import { type Contestant, keyOf, payload, type Settings } from '../contestant.ts'
import { importPeer } from './packages.ts'

interface Queue {
  add(name: string, data: object, options: { jobId: string }): Promise<unknown>
  addBulk(jobs: { name: string; data: object; opts?: { jobId: string } }[]): Promise<unknown>
  count(): Promise<number>
  close(): Promise<void>
}
type QueueClass = new (name: string, options: { connection: { host: string; port: number; password: string } }) => Queue

const exported = z.object({ Queue: z.custom<QueueClass>((value) => typeof value === 'function') })

export async function openBullmq({ url, packages }: Settings): Promise<Contestant> {
  const { Queue } = exported.parse(await importPeer(packages, 'bullmq/dist/cjs/index.js'))
  const { hostname, port, password } = new URL(url)
  const queue = new Queue('bench', { connection: { host: hostname, port: Number(port), password } })
  const add = (n: number) => queue.add('welcome', payload(n), { jobId: keyOf(n) })

  await add(-1)
  const before = await queue.count()
  await add(-1)
  if ((await queue.count()) !== before) throw new Error('jobId does not keep a second job out')
  return {
    async submit(n) {
      await add(n)
    },
    async submitMany(first, count, keyed) {
      const job = (n: number) => ({
        name: 'welcome',
        data: payload(n),
        ...(keyed ? { opts: { jobId: keyOf(n) } } : {}),
      })
      await queue.addBulk(Array.from({ length: count }, (_, i) => job(first + i)))
    },
    close: () => queue.close(),
  }
}
