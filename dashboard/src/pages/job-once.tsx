import type { JobDetail } from '@ichido/sdk/protocol'
import { words } from '../words.ts'

const w = words(
  {
    once: 'Once',
    onceNone: 'Nothing was repeated or came late.',
    accepted: 'It was accepted once.',
    acceptedByKey: (key: string) => `It was accepted once, for the key ${key}.`,
    held: (runs: number) =>
      runs === 1
        ? 'Its run is held by one worker at a time.'
        : `Each of its ${runs} runs is held by one worker at a time.`,
    outcome: 'Each run has one outcome.',
    replays: (n: number) =>
      n === 1 ? '1 repeated submission got the first answer' : `${n} repeated submissions got the first answer`,
    duplicates: (n: number) => (n === 1 ? '1 duplicate was refused' : `${n} duplicates were refused`),
    fenced: (n: number) => (n === 1 ? '1 late report was refused' : `${n} late reports were refused`),
    reassigned: (n: number) => (n === 1 ? 'The job was handed on once' : `The job was handed on ${n} times`),
  },
  {
    once: '一度だけの証拠',
    onceNone: '再送や遅れた報告はありません。',
    accepted: '一度だけ受け付けました。',
    acceptedByKey: (key) => `キー ${key} に対して一度だけ受け付けました。`,
    held: (runs) =>
      runs === 1
        ? '実行を担当するワーカーは常に 1 つです。'
        : `${runs} 回の実行は、それぞれ 1 つのワーカーだけが担当しました。`,
    outcome: '実行の結果は 1 つだけ記録されます。',
    replays: (n) => `重複した投入 ${n} 件に最初の応答を返しました`,
    duplicates: (n) => `重複 ${n} 件を拒否しました`,
    fenced: (n) => `遅れて届いた報告 ${n} 件を拒否しました`,
    reassigned: (n) => `${n} 回、別のワーカーに引き継がれました`,
  },
)

/** The promises in words, and what was repeated or came too late, and changed nothing. */
export function Once({ job: { once, idempotency_key: key, runs } }: { job: JobDetail }) {
  const promises = [key === null ? w().accepted : w().acceptedByKey(key), w().held(runs.length), w().outcome]
  const facts: [number, (n: number) => string][] = [
    [once.replays_served, w().replays],
    [once.duplicates_refused, w().duplicates],
    [once.stale_writes_fenced, w().fenced],
    [once.reassignments, w().reassigned],
  ]
  const told = facts.filter(([count]) => count > 0).map(([count, text]) => text(count))
  return (
    <section class="card pad" aria-label={w().once}>
      <h3>{w().once}</h3>
      <ul class="plain">
        {promises.map((promise) => (
          <li key={promise}>{promise}</li>
        ))}
      </ul>
      {told.length === 0 ? (
        <p class="note">{w().onceNone}</p>
      ) : (
        <ul>
          {told.map((text) => (
            <li key={text}>{text}</li>
          ))}
        </ul>
      )}
    </section>
  )
}
