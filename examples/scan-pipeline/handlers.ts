// The worker's handler of a scan. It reads no picture: the findings derive from the job's id, so every attempt finds the same.
import { createHash } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import type { HandlerContext } from '@ichido/sdk'

interface Item {
  name: string
  sure: number
  rule: string
  answer: string
  points: number
}

const ITEMS: readonly [Item, ...Item[]] = [
  {
    name: 'PET bottle',
    sure: 97,
    rule: 'Clear bottles are collected by themselves, empty and without label.',
    answer: 'Rinse it, take off the label, press it flat, and put it with the clear bottles.',
    points: 10,
  },
  {
    name: 'milk carton',
    sure: 93,
    rule: 'Drink cartons are collected apart from paper.',
    answer: 'Rinse it, cut it open, let it dry, and put it with the cartons.',
    points: 15,
  },
  {
    name: 'pizza box',
    sure: 89,
    rule: 'Cardboard with grease on it is not recycled.',
    answer: 'Put the clean lid with the cardboard, and the rest into the bin.',
    points: 5,
  },
]

/** Slow enough for a person to follow. */
const STEP_MS = Number(process.env.SCAN_STEP_MS ?? 900)

/** Each step is an event: its stage, its number inside the stage, and the text on the page. */
function stepsOf({ name, sure, rule, answer, points }: Item): [stage: string, sub: number, text: string][] {
  return [
    ['vision', 0, 'Looks at the picture'],
    ['vision', 1, `Sees a ${name}, ${sure} % sure`],
    ['rule', 0, `Looks for the rule for a ${name}`],
    ['rule', 1, rule],
    ['answer', 0, 'Puts it in words'],
    ['answer', 1, answer],
    ['reward', 0, `${points} points`],
    // S4: the last seq is 51.
    ['done', 1, `The ${name} is dealt with`],
  ]
}

async function scan({ job, signal, progress }: HandlerContext<unknown>): Promise<{ item: string; points: number }> {
  const [byte = 0] = createHash('sha256').update(job.id).digest()
  const item = ITEMS[byte % ITEMS.length] ?? ITEMS[0]
  // A second attempt starts from the beginning. Its events are those of the first attempt, so no reader sees them twice.
  for (const [stage, sub, text] of stepsOf(item)) {
    await sleep(STEP_MS, undefined, { signal })
    await progress(stage, sub, { text })
  }
  return { item: item.name, points: item.points }
}

export default { scan }
