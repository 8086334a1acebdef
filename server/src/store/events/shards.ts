import { claimSetting, readSetting } from '../access/access.sql.ts'
import { type Command, command } from '../port.ts'
import { exactlyOne, query, type Work } from '../statement.ts'
import { changeIdle } from './shards.sql.ts'

const NAME = 'redis_shards'
const OWNER = 'redis_owner'
const BY = 'ichido'

/** How many shards all nodes have agreed on: those of the first one that asked. */
export function claimShards(wanted: number): Command<number> {
  return command('claim_shards', function* work(): Work<number> {
    yield* query(claimSetting, { name: NAME, value: JSON.stringify(wanted), updated_by: BY })
    return Number((yield* exactlyOne(readSetting, { name: NAME })).value)
  })
}

/** The name under which all nodes of this store mark a Redis: that of the first one that asked. */
export function claimRedisOwner(wanted: string): Command<string> {
  return command('claim_redis_owner', function* work(): Work<string> {
    yield* query(claimSetting, { name: OWNER, value: JSON.stringify(wanted), updated_by: BY })
    return String((yield* exactlyOne(readSetting, { name: OWNER })).value)
  })
}

/** False when a node leads, or somebody has changed it meanwhile. */
export function changeShards(from: number, to: number): Command<boolean> {
  return command('change_shards', function* work(again): Work<boolean> {
    const changed = yield* query(changeIdle, {
      name: NAME,
      value: JSON.stringify(to),
      value_before: JSON.stringify(from),
      updated_by: BY,
    })
    if (changed.length > 0) return true
    return again && Number((yield* exactlyOne(readSetting, { name: NAME })).value) === to
  })
}
