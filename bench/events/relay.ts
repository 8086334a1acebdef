import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createClient } from '@redis/client'
import { Keys } from '../../server/src/bus/redis/keys.ts'
import { RedisLink, type ScriptCall } from '../../server/src/bus/redis/link.ts'
import { publishCall, RedisRelay } from '../../server/src/bus/redis/relay.ts'
import { DEFAULT_SHARDS, type StoredEvent } from '../../server/src/core/events/event.ts'
import { realWorld } from '../../server/src/node/world.ts'
import { silentMeter } from '../../server/src/services/system/meter.ts'
import { interleave, time } from '../measure.ts'
import type { Comparison } from '../report/comparison.ts'
import type { Stage } from '../stage.ts'

const SCRIPT = readFileSync(new URL('../../server/src/bus/lua/publish.lua', import.meta.url), 'utf8')
const DOMAIN = 'scan'
const JOBS = 100
const BATCH = 1_000
/** The same number as in the relay. */
const SCRIPT_EVENTS = 100
const STATE_MS = 3_600_000
const MARK_MS = 7_200_000
const KEYS = new Keys(false, DEFAULT_SHARDS)
const HOW = { nowMs: Date.now(), markMs: MARK_MS, stateMsOf: () => STATE_MS }
const LOOK_MS = 10
/** About as many as the relay handles in a millisecond. */
const EVENTS_A_MS = 20

/** The relay, beside its script called with prepared keys and arguments. */
export async function relaying({ size, say }: Stage, redisUrl: string): Promise<Comparison> {
  const client = await createClient({ url: redisUrl }).connect()
  const onTrouble = (error: unknown) => say(`redis: ${error}`)
  const link = new RedisLink({ world: realWorld, url: redisUrl, shards: DEFAULT_SHARDS, onTrouble })
  const ttls = () => ({ stateMs: STATE_MS, markMs: MARK_MS })
  const relay = new RedisRelay({ world: realWorld, link, owner: 'bench', ttls, meter: silentMeter, onTrouble })
  const batches = Math.ceil((size.roundMs * EVENTS_A_MS) / BATCH)
  const rateOf = (elapsedMs: number) => (batches * BATCH * 1_000) / elapsedMs

  async function ours(): Promise<number> {
    await client.flushAll()
    const given = makeBatches(batches)
    return rateOf(
      await time(async () => {
        for (const batch of given) await relay.publish(batch)
      }),
    )
  }

  async function bare(): Promise<number> {
    await client.flushAll()
    const sha = await client.scriptLoad(SCRIPT)
    const given = makeBatches(batches).map(callsFor)
    return rateOf(
      await time(async () => {
        for (const calls of given) await Promise.all(calls.map((call) => client.evalSha(sha, call)))
      }),
    )
  }

  try {
    while ((await relay.look()) === 'away') await new Promise((resolve) => setTimeout(resolve, LOOK_MS))
    say(`relaying ${batches * BATCH} events to Redis`)
    const found = await interleave(size, { bare, ours })
    return {
      what: `relay to Redis, ${BATCH.toLocaleString('en-US')} events a batch`,
      unit: '/s',
      ours: found.ours,
      against: 'bare EVALSHA, same client',
      theirs: found.bare,
      rival: 'limit',
      target: { least: 0.7 },
    }
  } finally {
    await relay.close()
    link.close()
    client.destroy()
  }
}

function makeBatches(count: number): StoredEvent[][] {
  const jobs = Array.from({ length: JOBS }, () => randomUUID())
  const createdAtMs = Date.now()
  return Array.from({ length: count }, (_, batch) =>
    Array.from({ length: BATCH }, (_, i) => {
      const n = 3 + Math.floor((batch * BATCH + i) / JOBS)
      const data = JSON.stringify({ step: n, note: 'what a page would show of it' })
      return { jobId: jobs[i % JOBS] ?? '', domain: DOMAIN, n, stage: 'progress', seq: n, data, createdAtMs }
    }),
  )
}

function callsFor(events: readonly StoredEvent[]): ScriptCall[] {
  return KEYS.shards.flatMap((shard) => {
    const part = events.filter(({ jobId }) => KEYS.shardOf(jobId) === shard)
    const calls: ScriptCall[] = []
    for (let i = 0; i < part.length; i += SCRIPT_EVENTS)
      calls.push(publishCall(KEYS, shard, part.slice(i, i + SCRIPT_EVENTS), HOW))
    return calls
  })
}
