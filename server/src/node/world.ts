import { randomBytes, randomFillSync } from 'node:crypto'
import { platformWorld, type World } from '@ichido/sdk/world'
import { orderedUuids } from '../core/node/ordered-uuid.ts'

/** The real world: the process's clock, timers and random source. */
export const realWorld: World = {
  ...platformWorld,
  soon: (callback) => void setImmediate(callback),
  uuid: orderedUuids(
    () => Date.now(),
    (bytes) => void randomFillSync(bytes),
  ),
  secret: (bytes) => randomBytes(bytes).toString('base64url'),
}
