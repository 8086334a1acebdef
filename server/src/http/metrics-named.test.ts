import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { parse } from 'yaml'
import { root } from '../../../scripts/boot/fetch-packages.mjs'
import { createMetrics } from './metrics.ts'

/** What operators are told to look at is there under that name. */

interface Rule {
  alert: string
  expr: string
  annotations: { summary: string; action: string }
}

const read = (path: string) => readFileSync(join(root, path), 'utf8')

async function exported(): Promise<Set<string>> {
  const { render } = createMetrics()
  const nothing = {
    jobs: null,
    workers: null,
    queues: null,
    deadLetters: null,
    triggers: null,
    schedules: null,
    alerts: null,
  }
  const page = await render({
    ...nothing,
    storeUp: true,
    full: { store: 0, artifacts: 0 },
    subscribers: { current: 0, behind: 0 },
  })
  return new Set([...page.matchAll(/^# HELP (\S+)/gm)].map(([, name]) => name ?? ''))
}

const named = (text: string) => [...new Set(text.match(/\bichido_[a-z_]+\b/g))].sort()

test('every metric that the rules of deploy/ ask for is exported, and each alert says what to do', async () => {
  const known = await exported()
  const { groups } = parse(read('deploy/prometheus-rules.yml')) as { groups: { rules: Rule[] }[] }
  const rules = groups.flatMap(({ rules }) => rules)
  expect(rules.length).toBeGreaterThan(10)
  expect(new Set(rules.map(({ alert }) => alert)).size).toBe(rules.length)
  for (const { alert, expr, annotations } of rules) {
    expect(named(expr), alert).not.toEqual([])
    expect(
      named(expr).filter((name) => !known.has(name)),
      alert,
    ).toEqual([])
    expect([annotations.summary, annotations.action], alert).toEqual([expect.any(String), expect.any(String)])
  }
})

test('every metric that the docs of operations name is exported', async () => {
  const known = await exported()
  const names = named(read('docs/operations.md'))
  expect(names.length).toBeGreaterThan(20)
  expect(names.filter((name) => !known.has(name))).toEqual([])
})
