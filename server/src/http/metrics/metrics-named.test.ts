import { globSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'
import { parse } from 'yaml'
import { root } from '../../../../scripts/boot/fetch-packages.mjs'
import { SETTINGS, type SettingName } from '../../core/limits/settings.ts'
import { createMetrics } from './metrics.ts'

/** Every documented metric exists under its name. */

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
    webhooks: null,
    schedules: null,
    alerts: null,
    disks: [],
    certificateEndsAtMs: undefined,
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

test('every metric in the rules of deploy/ is exported, and each alert has advice', async () => {
  const known = await exported()
  const { groups } = parse(read('deploy/prometheus-rules.yml')) as { groups: { rules: Rule[] }[] }
  const rules = groups.flatMap(({ rules }) => rules)
  expect(rules.length).toBeGreaterThan(10)
  expect(new Set(rules.map(({ alert }) => alert)).size).toBe(rules.length)
  for (const { alert, expr, annotations } of rules) {
    expect(named(expr), alert).not.toEqual([])
    expect(
      named(expr).filter((name) => !known.has(name.replace(/_(sum|count)$/, ''))),
      alert,
    ).toEqual([])
    expect([annotations.summary, annotations.action], alert).toEqual([expect.any(String), expect.any(String)])
  }
})

test('the rules of deploy/ have the thresholds of the leader and of seed S3', () => {
  const { groups } = parse(read('deploy/prometheus-rules.yml')) as { groups: { rules: Rule[] }[] }
  const exprOf = (name: string) =>
    groups.flatMap(({ rules }) => rules).find(({ alert }) => alert === name)?.expr ?? expect.fail(name)
  const preset = (name: SettingName) => SETTINGS[name].default
  const figures = [
    preset('alert_dead_letters_threshold'),
    preset('alert_retry_failures_threshold_percent'),
    preset('alert_duplicate_keys_threshold_percent'),
    preset('alert_start_delay_threshold_seconds'),
  ]
  expect(figures).toEqual([10, 5, 50, 300])
  expect(exprOf('IchidoManyDeadLetters')).toMatch(/\[1h\]\)\) > 10$/)
  expect(exprOf('IchidoRetriesFail')).toMatch(/ > 0\.05 and .* >= 20$/)
  expect(exprOf('IchidoManyDuplicateKeys')).toMatch(/ > 0\.5 and .* >= 20$/)
  expect(exprOf('IchidoRunsStartLate')).toMatch(/ > 300 and .* >= 5$/)
  for (const rule of ['dead_letters', 'retry_failures', 'duplicate_keys', 'start_delay'] as const) {
    expect(preset(`alert_${rule}_window_seconds`)).toBe(3_600)
  }
  const least = ['retry_failures', 'duplicate_keys', 'start_delay'] as const
  expect(least.map((rule) => preset(`alert_${rule}_min_events`))).toEqual([20, 20, 5])
  expect(exprOf('IchidoLeadersChangeOften')).toMatch(/\[10m\]\)\) > 3$/)
  expect([preset('alert_leader_changes_threshold'), preset('alert_leader_changes_window_seconds')]).toEqual([3, 600])
  expect(exprOf('IchidoQueueWaits')).toMatch(new RegExp(` > ${preset('alert_oldest_waiting_threshold_seconds')}$`))
  expect(exprOf('IchidoDiskNearlyFull')).toBe('ichido_disk_free_ratio < 0.1')
  expect(preset('alert_disk_nearly_full_threshold_percent')).toBe(90)
  expect(exprOf('IchidoCertificateEnds')).toContain(`< ${preset('alert_credential_ending_threshold_days')} * 86400`)
})

test('every metric that the docs of operations name is exported', async () => {
  const known = await exported()
  const names = named(globSync('docs/operations/*.md', { cwd: root }).map(read).join('\n'))
  expect(names.length).toBeGreaterThan(20)
  expect(names.filter((name) => !known.has(name))).toEqual([])
})
