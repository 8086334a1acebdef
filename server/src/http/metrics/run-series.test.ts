import { expect, test } from 'vitest'
import { createRunSeries, IDLE_MS, PAIRS_MAX } from './run-series.ts'

function series() {
  const clock = { ms: 0 }
  const runs = createRunSeries({ monotonic: () => clock.ms })
  const value = (name: string) => {
    const line = runs
      .render()
      .split('\n')
      .find((found) => found.startsWith(`${name} `))
    return line === undefined ? undefined : Number(line.slice(name.length + 1))
  }
  const end = (queue: string, kind: string) => runs.ended('SUCCEEDED', 0, queue, kind)
  const ended = (queue: string, kind = 'k') =>
    value(`ichido_runs_ended_total{state="SUCCEEDED",queue="${queue}",kind="${kind}"}`)
  const fill = () => {
    for (let i = 0; i < PAIRS_MAX; i++) end(`q${i}`, 'k')
  }
  return { clock, runs, value, end, ended, fill }
}

test('runs are counted by state, queue and kind', () => {
  const { runs, value, ended, end } = series()
  for (const kind of ['a', 'a', 'b']) end('q', kind)
  runs.ended('FAILED', 2, 'q', 'a')
  expect([ended('q', 'a'), ended('q', 'b')]).toEqual([2, 1])
  expect(value('ichido_runs_ended_total{state="FAILED",queue="q",kind="a"}')).toBe(1)
})

test('histograms are cumulative, and a bound belongs to its bucket', () => {
  const { runs, value } = series()
  for (const ms of [0, 10, 11, 6_000, 3_600_000, 99 * 86_400_000]) runs.started(ms, 'q', 'k')
  runs.reported('FAILED', 250, 'q', 'k', 0)
  const bucket = (le: string) => value(`ichido_run_wait_seconds_bucket{le="${le}",queue="q",kind="k"}`)
  expect(['0.01', '0.05', '1', '5', '30', '3600', '86400', '+Inf'].map(bucket)).toEqual([2, 3, 3, 3, 4, 5, 5, 6])
  expect(value('ichido_run_wait_seconds_count{queue="q",kind="k"}')).toBe(6)
  expect(value('ichido_run_wait_seconds_sum{queue="q",kind="k"}')).toBeCloseTo(0.021 + 6 + 3_600 + 99 * 86_400)
  expect(value('ichido_run_seconds_bucket{le="0.25",state="FAILED",queue="q",kind="k"}')).toBe(1)
  expect(value('ichido_run_seconds_bucket{le="0.05",state="FAILED",queue="q",kind="k"}')).toBe(0)
})

test('names that no queue can have cannot break the page', () => {
  const { runs, end, ended } = series()
  const hostile = ['', '"} 1', 'a\nichido_x 1', 'back\\slash', '列', 'a|b', '__proto__', 'x'.repeat(129)]
  for (const name of hostile) {
    end(name, 'k')
    end('q', name)
    runs.started(1, name, name)
    runs.reported('FAILED', 1, name, name, 0)
  }
  expect(ended('other', 'other')).toBe(2 * hostile.length)
  expect(ended('constructor')).toBeUndefined()
  end('constructor', 'k')
  expect(ended('constructor')).toBe(1)
  const label = '[a-z]+="[A-Za-z0-9+][A-Za-z0-9._:-]*"'
  const line = new RegExp(`^(# (HELP|TYPE) ichido_.+|ichido_[a-z_]+\\{${label}(,${label})*\\} [0-9.e+]+)?$`)
  expect(
    runs
      .render()
      .split('\n')
      .filter((found) => !line.test(found)),
  ).toEqual([])
})

test('beyond the maximum, pairs share the series of the others', () => {
  const { runs, end, ended, fill } = series()
  fill()
  for (let i = 0; i < 10_000; i++) end('late', `k${i}`)
  end('q0', 'k')
  expect([ended('q0'), ended('late', 'k0'), ended('other', 'other')]).toEqual([2, undefined, 10_000])
  expect(runs.render().match(/^ichido_runs_ended_total/gm)).toHaveLength(PAIRS_MAX + 1)
})

test('the series of a busy page stay within what Prometheus takes', () => {
  const { runs, end, fill } = series()
  fill()
  end('one', 'more')
  for (const queue of [...Array(PAIRS_MAX).keys()].map((i) => `q${i}`)) {
    runs.started(1, queue, 'k')
    for (const state of ['SUCCEEDED', 'FAILED', 'CANCELED']) runs.reported(state, 1, queue, 'k', 0)
    for (const state of ['FAILED', 'TIMED_OUT', 'CANCELED']) runs.ended(state, 0, queue, 'k')
  }
  expect(runs.render().match(/^ichido/gm)?.length).toBeLessThanOrEqual(60 * PAIRS_MAX + 1)
})

test('an idle pair makes room for a new one, and only then', () => {
  const { clock, end, ended, fill } = series()
  fill()
  clock.ms = 100 * IDLE_MS
  expect(ended('q1'), 'there is room').toBe(1)
  end('new', 'k')
  expect(ended('new'), 'nobody knows yet which pairs are idle').toBeUndefined()
  clock.ms += IDLE_MS / 2
  end('q0', 'k')
  end('new', 'k')
  clock.ms += IDLE_MS / 2
  end('new', 'k')
  expect([ended('new'), ended('q0'), ended('q1')]).toEqual([1, 2, undefined])
  expect(ended('other', 'other')).toBe(2)
})
