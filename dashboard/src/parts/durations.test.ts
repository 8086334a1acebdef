import { expect, test } from 'vitest'
import { durationText, parseDuration } from './durations.ts'

test.each([
  ['90', 90],
  ['10m', 600],
  ['2h', 7_200],
  ['1h 30m', 5_400],
  ['1d2h', 93_600],
  [' 15 MIN ', 900],
  ['0.5h', 1_800],
])('%s is a duration', (text, seconds) => {
  expect(parseDuration(text)).toBe(seconds)
})

test.each(['', 'm', '10x', '-5m', '10m ago', 'soon'])('"%s" is no duration', (text) => {
  expect(parseDuration(text)).toBeNull()
})

test.each([
  [0, '0s'],
  [45, '45s'],
  [600, '10m'],
  [5_400, '1h 30m'],
  [93_600, '1d 2h'],
])('%s seconds are written so that they are read again', (seconds, text) => {
  expect(durationText(seconds)).toBe(text)
  expect(parseDuration(text)).toBe(seconds)
})
