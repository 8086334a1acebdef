import type { Command } from '../store/port.ts'
import type { Step, Work } from '../store/statement.ts'

/** The command, with something more after its statement of this name, or before its commit: a step, or a deed. */
export function interpose<T>(command: Command<T>, after: string | null, extra: () => Step | undefined): Command<T> {
  function* work(again: boolean): Work<T> {
    const inner = command.work(again)
    let next = inner.next()
    while (!next.done) {
      const rows = yield next.value
      if (next.value.statement.name === after) yield* added()
      next = inner.next(rows)
    }
    if (after === null) yield* added()
    return next.value
  }
  function* added(): Work<void> {
    const step = extra()
    if (step !== undefined) yield step
  }
  return { name: command.name, work }
}
