import { expect, test } from 'vitest'
import { rowsOf } from './job-files-csv.ts'

test('lines are rows, and empty lines are left out', () => {
  expect(rowsOf('mode,cm\r\n1,400.5\r\n\r\n2,\r\n', ',')).toEqual([
    ['mode', 'cm'],
    ['1', '400.5'],
    ['2', ''],
  ])
})

test('a quoted cell keeps separators, line breaks and quotes', () => {
  expect(rowsOf('\uFEFFa,"b, ""c""\nd"\n', ',')).toEqual([['a', 'b, "c"\nd']])
})

test('tabs separate cells if the file says so, and the last line needs no end', () => {
  expect(rowsOf('a\tb,c', '\t')).toEqual([['a', 'b,c']])
  expect(rowsOf('', ',')).toEqual([])
})
