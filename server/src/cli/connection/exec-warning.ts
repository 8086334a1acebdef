import { paint, say } from '../output/terminal.ts'

/** A path that stands elsewhere than at the beginning of the command, after nothing that changes the folder. */
const LOOKS_HERE = /^(?:(?!\bcd\s).)*?\s["']?(?<path>\.\.?\/[^\s"';&|]*)/s

/** Programs run in an empty folder of their own: what is said to be beside them is not there. */
export function warnOfFolder(exec: string | undefined): void {
  const path = LOOKS_HERE.exec(exec ?? '')?.groups?.path
  if (path === undefined) return
  say(
    `${paint('yellow', 'warning:')} programs run in an empty folder, which has no ${path}. Use "$ICHIDO_AGENT_DIR", in single quotes, for`,
  )
  say(`the folder in which the worker is started; a ./ means that folder only at the beginning of the command.`)
}
