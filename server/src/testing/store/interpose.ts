import type { Command } from '../../store/port.ts'
import type { Step, Work } from '../../store/statement.ts'

/**
 * The command with an extra step, or a side effect, after the statement of this name or before its commit. Before the
 * commit, the command runs as on PostgreSQL: as a single statement if possible.
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
  return { name: command.name, lane: command.lane, work }
}

function* whole<T>(command: Command<T>, again: boolean): Work<T> {
  const { fastPath } = command
  if (fastPath === undefined || again) return yield* command.work(again)
  const rows = yield fastPath.step
  return fastPath.settle(rows) ?? (yield* (fastPath.left?.(rows) ?? command).work(again))
}
