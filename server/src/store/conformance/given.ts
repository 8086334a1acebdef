import type { Engine } from '../../testing/services/services.ts'
import type { Store } from '../port.ts'

/** What an engine brings to the suite: a store that is open while the tests run. */
export interface Given {
  engine: Engine
  store(): Store
}
