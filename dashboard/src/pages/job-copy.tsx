import type { JobDetail } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { Copy, commandLine, Json } from '../parts/text.tsx'
import { BASE_URL } from '../server/call.ts'
import { words } from '../words.ts'

const w = words(
  { title: 'Submit a job like this', copy: 'the text' },
  { title: '同じジョブを投入する', copy: 'テキスト' },
)

const FORMS = { curl: toCurl, CLI: toCli, TypeScript: toTypeScript }
type Form = keyof typeof FORMS

/** The submission of this job, in three forms, without its key: the same key would give the same job. */
export function CopyAs({ job }: { job: JobDetail }) {
  const [form, setForm] = useState<Form>('curl')
  const text = FORMS[form](job)
  return (
    <section class="card pad" aria-label={w().title}>
      <div class="line">
        <h3>{w().title}</h3>
        {Object.keys(FORMS).map((name) => (
          <button
            key={name}
            type="button"
            class="quiet"
            aria-pressed={form === name}
            onClick={() => setForm(name as Form)}
          >
            {name}
          </button>
        ))}
        <Copy text={text} name={w().copy} />
      </div>
      <Json value={text} name={form} />
    </section>
  )
}

const quoted = (text: string): string => `'${text.replaceAll("'", "'\\''")}'`

function requestOf({ kind, queue, payload, priority, labels, policy, callback }: JobDetail): object {
  return {
    kind,
    queue,
    payload,
    ...(priority === 0 ? {} : { priority }),
    ...(Object.keys(labels).length === 0 ? {} : { labels }),
    ...policy,
    ...(callback === null ? {} : { callback_url: callback.url }),
  }
}

function toCurl(job: JobDetail): string {
  const lines = [
    `curl -s ${quoted(`${BASE_URL}/v1/jobs`)}`,
    "-H 'Content-Type: application/json'",
    '-H "Authorization: Bearer $ICHIDO_TOKEN"',
    `-d ${quoted(JSON.stringify(requestOf(job)))}`,
  ]
  return lines.join(' \\\n  ')
}

function toCli(job: JobDetail): string {
  const labels = Object.entries(job.labels).map(([name, value]) => `--label ${quoted(`${name}=${value}`)}`)
  const { max_attempts: attempts } = job.policy
  const words = [
    `submit ${quoted(job.kind)}`,
    `--queue ${quoted(job.queue)}`,
    ...(job.priority === 0 ? [] : [`--priority ${job.priority}`]),
    ...labels,
    ...(typeof attempts === 'number' ? [`--max-attempts ${attempts}`] : []),
    ...(job.callback === null ? [] : [`--callback-url ${quoted(job.callback.url)}`]),
    `--payload ${quoted(JSON.stringify(job.payload))}`,
  ]
  return commandLine(words.join(' '))
}

function toTypeScript(job: JobDetail): string {
  const options = {
    ...(job.priority === 0 ? {} : { priority: job.priority }),
    ...(Object.keys(job.labels).length === 0 ? {} : { labels: job.labels }),
    ...(job.callback === null ? {} : { callbackUrl: job.callback.url }),
  }
  const { max_attempts: maxAttempts } = job.policy
  const kind = { queue: job.queue, ...(typeof maxAttempts === 'number' ? { maxAttempts } : {}) }
  const given = Object.keys(options).length === 0 ? '' : `, ${JSON.stringify(options)}`
  return [
    `const kind = defineKind(${JSON.stringify(job.kind)}, ${JSON.stringify(kind)})`,
    `const job = await ichido.submit(kind, ${JSON.stringify(job.payload, null, 2)}${given})`,
  ].join('\n')
}
