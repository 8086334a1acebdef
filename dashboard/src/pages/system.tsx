import type { LoopShape, SystemShape } from '@ichido/sdk/protocol'
import type { ComponentChildren } from 'preact'
import { Loaded } from '../parts/loaded.tsx'
import { Age, formatDuration, Instant } from '../parts/text.tsx'
import { useRead } from '../server/queries.ts'
import { formatBytes, formatNumber, words } from '../words.ts'

const w = words(
  {
    title: 'System',
    view: 'This page shows the node that answered. Other nodes may have other loops and disks.',
    node: 'Node',
    version: 'Version',
    nodeVersion: 'Node.js',
    started: 'Started',
    leader: 'Leader',
    thisNode: 'This node',
    otherNode: 'Another node',
    nobody: 'No node leads',
    epoch: 'Epoch',
    since: 'Since',
    store: 'Store',
    engine: 'Engine',
    location: 'Location',
    schema: 'Schema version',
    size: 'Size',
    durable: 'Durable',
    yes: 'Yes',
    no: 'No: acknowledged jobs can get lost',
    pooled: 'Connection pooler',
    direct: 'None',
    between: 'In between',
    skew: 'Clock difference',
    wakeUps: 'Redis',
    ok: 'Connected',
    away: 'Does not answer',
    full: 'Full',
    none: 'Not used',
    disks: 'Free disk space',
    noDisk: 'This node writes to no disk of its own',
    loops: 'Loops of this node',
    loop: 'Loop',
    interval: 'Interval',
    last: 'Last run',
    took: 'Took',
    state: 'State',
    late: 'Late',
    inTime: 'In time',
    ago: 'ago',
    noLoops: 'This node runs no loop.',
  },
  {
    title: 'システム',
    view: 'このページは応答したノードの状態です。他のノードの処理とディスクは異なることがあります。',
    node: 'ノード',
    version: 'バージョン',
    nodeVersion: 'Node.js',
    started: '起動',
    leader: 'リーダー',
    thisNode: 'このノード',
    otherNode: '別のノード',
    nobody: 'リーダーがいません',
    epoch: 'エポック',
    since: '開始',
    store: 'ストア',
    engine: 'エンジン',
    location: '場所',
    schema: 'スキーマの版',
    size: 'サイズ',
    durable: '永続性',
    yes: 'あり',
    no: 'なし: 受け付けたジョブを失うことがあります',
    pooled: 'コネクションプーラー',
    direct: 'なし',
    between: 'あり',
    skew: '時計の差',
    wakeUps: 'Redis',
    ok: '接続中',
    away: '応答なし',
    full: '満杯',
    none: '不使用',
    disks: 'ディスクの空き',
    noDisk: 'このノードはディスクに書き込みません',
    loops: 'このノードの処理',
    loop: '処理',
    interval: '間隔',
    last: '最後の実行',
    took: '所要時間',
    state: '状態',
    late: '遅れ',
    inTime: '正常',
    ago: '前',
    noLoops: 'このノードで動く処理はありません。',
  },
)

/** A larger difference of the clocks is worth a look, as `ichido doctor` says. */
const SKEW_MAX_MS = 1_000
const DISK_LOW_PERCENT = 10

export default function System() {
  const system = useRead<SystemShape>('/v1/system')
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
      </div>
      <p class="note">{w().view}</p>
      <Loaded of={system}>
        {(data) => (
          <>
            <Facts system={data} />
            <Loops loops={data.loops} />
          </>
        )}
      </Loaded>
    </>
  )
}

type Fact = [name: string, value: ComponentChildren, bad?: boolean]

function Facts({ system: { node, leader, store, redis, disks } }: { system: SystemShape }) {
  const leads = leader.this_node ? w().thisNode : leader.present ? w().otherNode : w().nobody
  const node_: Fact[] = [
    [w().version, node.version],
    [w().nodeVersion, node.node_version],
    [w().started, <Instant key="started" of={node.started_at} />],
    [w().wakeUps, w()[redis ?? 'none'], redis === 'away' || redis === 'full'],
  ]
  const leader_: Fact[] = [
    [w().leader, leads, !leader.present],
    [w().epoch, formatNumber(leader.epoch)],
    [w().since, <Instant key="since" of={leader.since} />],
  ]
  const store_: Fact[] = [
    [w().engine, `${store.engine === 'sqlite' ? 'SQLite' : 'PostgreSQL'} ${store.engine_version}`],
    [w().location, store.location],
    [w().schema, formatNumber(store.schema_version)],
    [w().size, formatBytes(store.bytes)],
    [w().durable, store.durable ? w().yes : w().no, !store.durable],
    ...Object.entries(store.durability).map(([name, value]): Fact => [name, value]),
    [w().pooled, store.pooled ? w().between : w().direct],
    [w().skew, `${formatNumber(store.clock_skew_ms)} ms`, Math.abs(store.clock_skew_ms) > SKEW_MAX_MS],
  ]
  const disks_: Fact[] = disks.map(({ folder, free_percent }) => [
    folder,
    `${formatNumber(free_percent)} %`,
    free_percent < DISK_LOW_PERCENT,
  ])
  return (
    <div class="grid">
      <Card title={w().node} facts={node_} />
      <Card title={w().leader} facts={leader_} />
      <Card title={w().store} facts={store_} />
      <Card title={w().disks} facts={disks_} none={w().noDisk} />
    </div>
  )
}

function Card({ title, facts, none }: { title: string; facts: readonly Fact[]; none?: string }) {
  return (
    <section class="card pad system" aria-label={title}>
      <h3>{title}</h3>
      {facts.length === 0 && <p class="note">{none}</p>}
      <dl>
        {facts.map(([name, value, bad]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd class={bad ? 'error' : ''}>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  )
}

function Loops({ loops }: { loops: readonly LoopShape[] }) {
  if (loops.length === 0) return <p class="note">{w().noLoops}</p>
  return (
    <div class="card list">
      <table>
        <caption class="unseen">{w().loops}</caption>
        <thead>
          <tr>
            <th scope="col">{w().loop}</th>
            <th scope="col">{w().state}</th>
            <th scope="col">{w().last}</th>
            <th scope="col" class="number medium">
              {w().took}
            </th>
            <th scope="col" class="number medium">
              {w().interval}
            </th>
          </tr>
        </thead>
        <tbody>
          {loops.map(({ name, interval_seconds, last_run_at, last_run_ms, late }) => (
            <tr key={name} data-id={name}>
              <th scope="row">{name}</th>
              <td>
                <span class="pill" data-state={late ? 'FAILED' : 'SUCCEEDED'}>
                  {late ? w().late : w().inTime}
                </span>
              </td>
              <td>
                <Age of={last_run_at} />
                {last_run_at !== null && ` ${w().ago}`}
              </td>
              <td class="number medium">{last_run_ms === null ? '–' : formatDuration(last_run_ms)}</td>
              <td class="number medium">{formatDuration(interval_seconds * 1_000)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}
