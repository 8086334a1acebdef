import { globSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { parse } from 'yaml'
import { root } from '../../../../scripts/boot/fetch-packages.mjs'
import { redisUrl } from '../../../../scripts/testing/services.ts'
import { serveHere } from '../../cli/testing/serve-here.ts'
import { SETTINGS, type SettingName } from '../../core/limits/settings.ts'
import { realWorld } from '../../node/world.ts'
import { Receiver } from '../../testing/http/receiver.ts'
import { until } from '../../testing/store/store.ts'
import { createMetrics } from './metrics.ts'

/** Every metric and label that the docs, the rules and the dashboard of Grafana name exists. */

interface Rule {
  alert: string
  expr: string
  annotations: { summary: string; action: string }
}

interface Panel {
  id: number
  type: string
  title: string
  description?: string
  gridPos: { x: number; y: number; w: number; h: number }
  datasource?: { uid: string }
  targets?: { expr: string; legendFormat: string; datasource: { uid: string } }[]
  fieldConfig?: { defaults: { unit: string; thresholds: { steps: { value: number | null }[] } } }
}

interface Dashboard {
  uid: string
  schemaVersion: number
  templating: { list: { name: string; type: string; definition?: string }[] }
  panels: Panel[]
}

const read = (path: string) => readFileSync(join(root, path), 'utf8')
const rules = (parse(read('deploy/prometheus-rules.yml')) as { groups: { rules: Rule[] }[] }).groups.flatMap(
  ({ rules }) => rules,
)
const dashboard = JSON.parse(read('deploy/grafana-dashboard.json')) as Dashboard
const panels = dashboard.panels.filter(({ type }) => type !== 'row')

/** As the file names it. */
const DATASOURCE = `\${datasource}`

const named = (text: string) => [...new Set(text.match(/\bichido_[a-z_]+\b/g))].sort()
/** The samples of a histogram have other names than their metric. */
const metricOf = (name: string) => name.replace(/_(sum|count|bucket)$/, '')

/** A page of /metrics: its metrics, and the labels of its series. */
interface Page {
  metrics: ReadonlySet<string>
  labels: ReadonlyMap<string, ReadonlySet<string>>
}

/** Prometheus adds these labels. */
const ADDED = ['instance', 'job']

function readPage(text: string): Page {
  const labels = new Map<string, Set<string>>()
  for (const [, name = '', inner = ''] of text.matchAll(/^([a-z_]+)(?:\{(.*)\})? \S+$/gm)) {
    const found = labels.get(name) ?? new Set(ADDED)
    for (const [, label = ''] of inner.matchAll(/([a-z]+)="/g)) found.add(label)
    labels.set(name, found)
  }
  return { metrics: new Set([...text.matchAll(/^# HELP (\S+)/gm)].map(([, name]) => name ?? '')), labels }
}

/** The names of an expression, or of a query of a variable, that no page has. */
function unknownIn(expr: string, { metrics, labels }: Page): string[] {
  const all = named(expr.replaceAll(/"[^"]*"/g, (text) => (text.includes('ichido_') ? text : '""')))
  const unknown = all.filter((name) => !metrics.has(metricOf(name)) && !metrics.has(name))
  const bare = expr.replaceAll(/"[^"]*"/g, '""')
  for (const [, name = '', inner = ''] of bare.matchAll(/\b(ichido_[a-z_]+)\{([^}]*)\}/g)) {
    for (const [, label = ''] of inner.matchAll(/([a-z_]+)\s*(?:=~|!~|!=|=)/g)) {
      if (!labels.get(name)?.has(label)) unknown.push(`${name}{${label}}`)
    }
  }
  const either = new Set(all.flatMap((name) => [...(labels.get(name) ?? [])]))
  const grouped = [...bare.matchAll(/\b(?:by|on|without|ignoring) \(([^)]*)\)/g)].flatMap(([, list = '']) =>
    list.split(', '),
  )
  const asked = [...bare.matchAll(/label_values\(.*, ([a-z]+)\)$/g)].map(([, label = '']) => label)
  return [...unknown, ...[...grouped, ...asked].filter((label) => !either.has(label))]
}

/** The labels that a result has: those of its outermost grouping. */
function unknownLegend({ expr, legendFormat }: { expr: string; legendFormat: string }): string[] {
  const grouping = /\bby \(([^)]*)\)/.exec(expr)?.[1]?.split(', ') ?? []
  return [...legendFormat.matchAll(/\{\{([^}]*)\}\}/g)].flatMap(([, label = '']) =>
    grouping.includes(label) ? [] : label,
  )
}

describe('a server that has worked', () => {
  let server: Awaited<ReturnType<typeof serveHere>>
  let receiver: Receiver
  let page: Page
  const dataDir = mkdtempSync(join(tmpdir(), 'ichido-metrics-'))

  async function call(method: string, path: string, body?: unknown, headers: Record<string, string> = {}) {
    const answer = await fetch(`${server.url}${path}`, {
      method,
      headers: { ...headers, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    })
    return answer.headers.get('content-type')?.includes('json') ? await answer.json() : await answer.text()
  }

  const submit = (queue: string, headers = {}) =>
    call('POST', '/v1/jobs', { kind: 'k', queue, max_attempts: 2, backoff: { base_seconds: 0 } }, headers)

  async function work(): Promise<void> {
    const { enroll_token } = await call('POST', '/v1/workers/enroll-tokens', {})
    const { worker_token } = await call('POST', '/v1/workers/register', { enroll_token, name: 'w' })
    const worker = { authorization: `Bearer ${worker_token}` }
    const lease = async () => {
      const asked = { queues: ['q'], start: true, start_id: 'p', wait_seconds: 20 }
      return `/v1/leases/${(await call('POST', '/v1/leases', asked, worker)).leases[0].lease_id}`
    }
    await call('POST', '/v1/webhooks', { url: receiver.url })
    await call('PUT', '/v1/queues/q', { max_concurrent: 9 })
    await submit('q', { 'idempotency-key': 'a' })
    await submit('q', { 'idempotency-key': 'a' })
    await call('POST', `${await lease()}/result`, { result: 1 }, worker)
    await submit('q')
    for (const last of [false, true]) {
      const place = await lease()
      await call('POST', `${place}/failed`, { error_code: 'X', error_message: 'no', retryable: true }, worker)
      if (last) await call('POST', `${place}/heartbeat`, {}, worker)
    }
    await submit('waiting')
    await call('PUT', '/v1/quotas/local', { max_concurrent: 0 })
    await submit('q')
    await call('GET', '/v1/jobs', undefined, { 'ichido-attempt': '2' })
  }

  beforeAll(async () => {
    receiver = await Receiver.open()
    const redis = { REDIS_URL: redisUrl(), RELAY_INTERVAL_SECONDS: '0.1' }
    const alerts = { ALERT_INTERVAL_SECONDS: '0.1', ALERT_DEAD_LETTERS_THRESHOLD: '0' }
    const webhooks = { WEBHOOKS_INTERVAL_SECONDS: '0.1', WEBHOOKS_ALLOW_PRIVATE: '1' }
    server = await serveHere({ DATA_DIR: dataDir, ...redis, ...alerts, ...webhooks })
    await work()
    const shown = [
      'webhook_tries_total{',
      'alerts_open{',
      'events_relayed_total{',
      'dead_letters{',
      'queue_ready{',
      'workers{',
    ]
    const text = await until('the counts on the page', async () => {
      const found = await call('GET', '/metrics')
      return shown.every((name) => found.includes(`\nichido_${name}`)) && found
    })
    page = readPage(text)
  })
  afterAll(async () => {
    await server.kill9()
    await receiver.close()
    rmSync(dataDir, { recursive: true })
  })

  test('it exports every metric and label in the rules of deploy/', () => {
    expect(rules.length).toBeGreaterThan(10)
    for (const { alert, expr, annotations } of rules) {
      expect(named(expr), alert).not.toEqual([])
      expect(unknownIn(expr, page), alert).toEqual([])
      const used = [...JSON.stringify(annotations).matchAll(/\$labels\.([a-z]+)/g)].map(([, label]) => label)
      const grouping = /\bby \(([^)]*)\)/.exec(expr)?.[1]?.split(', ')
      const had = grouping ?? named(expr).flatMap((name) => [...(page.labels.get(name) ?? ADDED)])
      expect(
        used.filter((label) => !had.includes(label ?? '')),
        alert,
      ).toEqual([])
    }
  })

  test('it exports every metric and label in the dashboard of Grafana', () => {
    expect(panels.length).toBeGreaterThan(30)
    for (const { title, targets = [] } of panels) {
      expect(targets.length, title).toBeGreaterThan(0)
      for (const target of targets) {
        expect(named(target.expr), title).not.toEqual([])
        expect([...unknownIn(target.expr, page), ...unknownLegend(target)], title).toEqual([])
      }
    }
    const queries = dashboard.templating.list.flatMap(({ definition }) => definition ?? [])
    expect(queries).toHaveLength(3)
    for (const query of queries) expect(unknownIn(query, page), query).toEqual([])
  })
})

test('unknown metrics and labels are found', () => {
  const page = readPage('# HELP ichido_x x\nichido_x{queue="q",state="a"} 1\n')
  expect(unknownIn('sum by (queue) (rate(ichido_x{state="a", instance=~"$instance"}[5m]))', page)).toEqual([])
  expect(unknownIn('sum by (kind) (ichido_x{kind="b"} / ichido_y)', page)).toEqual([
    'ichido_y',
    'ichido_x{kind}',
    'kind',
  ])
  expect(unknownIn('label_values(ichido_x{queue="b"}, kind)', page)).toEqual(['kind'])
  expect(unknownLegend({ expr: 'sum by (queue) (ichido_x)', legendFormat: '{{queue}} {{state}}' })).toEqual(['state'])
})

test('the dashboard of Grafana is complete: ids, places, titles, units and one data source', () => {
  expect(dashboard).toMatchObject({ uid: 'ichido', schemaVersion: expect.any(Number) })
  const ids = dashboard.panels.map(({ id }) => id)
  expect(new Set(ids).size).toBe(ids.length)
  const taken = new Map<string, string>()
  for (const { title, gridPos } of dashboard.panels) {
    expect(gridPos.x + gridPos.w, title).toBeLessThanOrEqual(24)
    for (let x = gridPos.x; x < gridPos.x + gridPos.w; x++) {
      for (let y = gridPos.y; y < gridPos.y + gridPos.h; y++) {
        expect(taken.get(`${x},${y}`), title).toBeUndefined()
        taken.set(`${x},${y}`, title)
      }
    }
  }
  expect(new Set(dashboard.panels.map(({ title }) => title)).size).toBe(ids.length)
  for (const { title, description, datasource, targets, fieldConfig } of panels) {
    expect(description, title).toMatch(/^[A-Z0-9].{20,}\.$/)
    expect([datasource?.uid, ...(targets ?? []).map((target) => target.datasource.uid)], title).toEqual(
      Array((targets ?? []).length + 1).fill(DATASOURCE),
    )
    const { unit, thresholds } = fieldConfig?.defaults ?? expect.fail(title)
    expect(['none', 's', 'ops', 'reqps', 'percentunit'], title).toContain(unit)
    const [first, ...steps] = thresholds.steps.map(({ value }) => value)
    expect(first, title).toBeNull()
    expect(
      steps.toSorted((a, b) => (a ?? 0) - (b ?? 0)),
      title,
    ).toEqual(steps)
  }
  const variables = dashboard.templating.list.map(({ name, type }) => `${name} ${type}`)
  expect(variables).toEqual(['datasource datasource', 'instance query', 'queue query', 'kind query'])
  const used = JSON.stringify(panels).match(/\$\{?[a-z_]+\}?/g)
  expect(new Set(used)).toEqual(new Set([DATASOURCE, '$instance', '$queue', '$kind', '$__rate_interval']))
})

test('the rules of deploy/ have the thresholds of the leader and of seed S3', () => {
  expect(new Set(rules.map(({ alert }) => alert)).size).toBe(rules.length)
  const exprOf = (name: string) => rules.find(({ alert }) => alert === name)?.expr ?? expect.fail(name)
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

function emptyPage(): Promise<string> {
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
  const node = { full: { store: 0, artifacts: 0 }, subscribers: { current: 0, behind: 0 } }
  return createMetrics(realWorld).render({ ...nothing, ...node, storeUp: true })
}

test('every metric that the docs of operations name is exported', async () => {
  const known = readPage(await emptyPage()).metrics
  const names = named(globSync('docs/operations/*.md', { cwd: root }).map(read).join('\n'))
  expect(names.length).toBeGreaterThan(20)
  expect(names.filter((name) => !known.has(name))).toEqual([])
})
