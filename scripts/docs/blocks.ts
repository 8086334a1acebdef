/** A fenced code block of a page. */
export interface Block {
  /** The place of its first line, as `docs/api.md:12`. */
  at: string
  language: string
  /** The words after the language, which readers do not see: `no-run="why"`, `answer`, … */
  marks: ReadonlyMap<string, string>
  text: string
}

/**
 * The marks of a block.
 *
 * - `no-run="why"`: it cannot run here.
 * - `answer`: the output of the block before it.
 * - `picture`: a drawing, not code or output.
 * - `terminal`: runs in a separate terminal until the end of the page.
 * - `fails`: one of its commands fails, as the page says.
 * - `refused`: one of its requests gets an error, as the page says.
 * - `until`: runs again until it prints its answer.
 * - `file="name"`: is written to a file, which later blocks use.
 * - `alone`: shares no names with the page's other blocks of its language.
 */
const MARKS = ['no-run', 'answer', 'picture', 'terminal', 'fails', 'refused', 'until', 'file', 'alone'] as const
export type Mark = (typeof MARKS)[number]

const FENCE = /^(?<indent> *)```(?<rest>.*)$/

export function blocksOf(path: string, page: string): Block[] {
  const blocks: Block[] = []
  let open: { at: string; indent: number; rest: string; lines: string[] } | null = null
  for (const [n, line] of page.split('\n').entries()) {
    const { indent = '', rest = '' } = FENCE.exec(line)?.groups ?? {}
    const isFence = FENCE.test(line)
    if (open === null) {
      if (isFence) open = { at: `${path}:${n + 1}`, indent: indent.length, rest, lines: [] }
    } else if (isFence && rest.trim() === '') {
      blocks.push({ at: open.at, ...readInfo(open.at, open.rest), text: `${open.lines.join('\n')}\n` })
      open = null
    } else open.lines.push(line.slice(open.indent))
  }
  if (open !== null) throw new Error(`${open.at}: the block does not end`)
  return blocks
}

function readInfo(at: string, info: string): Pick<Block, 'language' | 'marks'> {
  const [, language = '', rest = ''] = /^(\S*)\s*(.*)$/.exec(info) ?? []
  const marks = new Map<string, string>()
  for (const [, name = '', value = ''] of rest.matchAll(/([\w-]+)(?:="([^"]*)")?/g)) {
    if (!MARKS.some((mark) => mark === name)) throw new Error(`${at}: there is no mark ${name}`)
    marks.set(name, value)
  }
  if (marks.get('no-run') === '') throw new Error(`${at}: no-run needs a reason`)
  return { language, marks }
}
