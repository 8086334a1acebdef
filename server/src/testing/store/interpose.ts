import type { Command } from '../../store/port.ts'
import type { Step, Work } from '../../store/statement.ts'

/**
 * The command, with something more after its statement of this name, or before its commit: a step, or a deed. Before its
 * commit, it is as PostgreSQL carries it out: by one statement where that will do.
 */
export function interpose<T>(command: Command<T>, after: string | null, extra: () => Step | undefined): Command<T> {
  function* work(again: boolean): Work<T> {
    if (after === null) {
      const answer = yield* whole(command, again)
      yield* added()
      return answer
    }
    const inner = command.work(again)
    let next = inner.next()
    while (!next.done) {
      const rows = yield next.value
      if (next.value.statement.name === after) yield* added()
      next = inner.next(rows)
    }
    return next.value
  }
  function* added(): Work<void> {
    const step = extra()
    if (step !== undefined) yield step
  }
  return { name: command.name, work }
}

function* whole<T>(command: Command<T>, again: boolean): Work<T> {
  const { fastPath } = command
  if (fastPath === undefined || again) return yield* command.work(again)
  const rows = yield fastPath.step
  return fastPath.settle(rows) ?? (yield* (fastPath.left?.(rows) ?? command).work(again))
}
