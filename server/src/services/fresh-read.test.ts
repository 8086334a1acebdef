import { expect, test } from 'vitest'
import { freshRead } from './fresh-read.ts'

/** Each reading looks when it begins, and answers when it is told to. */
function slow() {
  let value = 0
  const answers: (() => void)[] = []
  const ask = freshRead(() => {
    const seen = value
    return new Promise<number>((resolve, reject) => {
      answers.push(() => (seen < 0 ? reject(new Error('away')) : resolve(seen)))
    })
  })
  return { ask, answers, set: (next: number) => (value = next) }
}

const turn = () => new Promise((resolve) => setImmediate(resolve))

test('whoever asks while a reading is under way shares the next one', async () => {
  const { ask, answers, set } = slow()
  const first = [ask(), ask()]
  await turn()
  set(1)
  const second = [ask(), ask()]
  await turn()
  expect(answers.length).toBe(1)
  answers[0]?.()
  expect(await Promise.all(first)).toEqual([0, 0])
  await turn()
  expect(answers.length).toBe(2)
  answers[1]?.()
  expect(await Promise.all(second)).toEqual([1, 1])
})

test('a reading that fails holds up nobody', async () => {
  const { ask, answers, set } = slow()
  set(-1)
  const failing = expect(ask()).rejects.toThrow('away')
  await turn()
  set(2)
  const next = ask()
  answers[0]?.()
  await failing
  await turn()
  answers[1]?.()
  expect(await next).toBe(2)
})
