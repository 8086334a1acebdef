// The panel that shows one job.

import { $, ACTIVE, element, errorText, problem, setPill, setSpan, setText, shortId } from './page-dom.js'

let shown = ''

/** An empty panel for this job. */
export function clearDetail(id) {
  shown = ''
  for (const part of ['facts', 'runs', 'payload', 'state']) $(`detail-${part}`).replaceChildren()
  setText($('detail-title'), `Job ${shortId(id)}`)
  setText($('detail-id'), id)
  $('detail-copy').dataset.copy = id
  $('detail-cancel').hidden = true
  $('detail-outcome').hidden = true
  $('detail-trace').hidden = true
  problem('detail-problem', null)
}

/** A succeeded job has a `result`. */
export function showDetail(job) {
  const text = JSON.stringify(job)
  if (text === shown) return
  shown = text
  setPill($('detail-state'), job)
  const cancel = $('detail-cancel')
  cancel.hidden = !ACTIVE.has(job.state)
  cancel.disabled = job.cancel_requested_at !== null
  $('detail-facts').replaceChildren(...facts(job).flatMap(([name, value]) => [element('dt', { text: name }), value]))
  // The error of a single run is the job's error, which is already shown above.
  const alone = job.runs.length === 1 && job.error !== null
  $('detail-runs').replaceChildren(...job.runs.flatMap((run) => runRows(run, alone)))
  setText($('detail-payload'), JSON.stringify(job.payload, null, 2))
  $('detail-outcome').hidden = job.result === undefined
  setText($('detail-result'), JSON.stringify(job.result, null, 2) ?? '')
  $('detail-trace').hidden = !job.error?.traceback
  setText($('detail-traceback'), job.error?.traceback ?? '')
}

function facts(job) {
  const say = (text) => element('dd', { text })
  const at = (instant) =>
    element('dd', {}, element('time', { dateTime: instant, text: new Date(instant).toLocaleString() }))
  const labels = Object.entries(job.labels).map(([name, value]) => `${name}=${value}`)
  return [
    ['Kind', say(job.kind)],
    ['Queue', say(job.queue)],
    ['User', say(job.user_id)],
    ['Key', say(job.idempotency_key ?? 'none')],
    ['Created', at(job.created_at)],
    ...(job.state === 'PENDING' ? [['Due', at(job.run_at)]] : []),
    ...(job.started_at ? [['Started', at(job.started_at)]] : []),
    ...(job.finished_at ? [['Finished', at(job.finished_at)]] : []),
    ...(labels.length > 0 ? [['Labels', say(labels.join(', '))]] : []),
    ...(errorText(job) === '' ? [] : [['Error', element('dd', { className: 'error', text: errorText(job) })]]),
  ]
}

function runRows(run, alone) {
  const { assigned_worker_id: worker } = run
  const state = element('span')
  setPill(state, run)
  const took = element('td', { className: 'number' })
  setSpan(took, run.started_at, run.finished_at)
  const row = element(
    'tr',
    {},
    element('td', { className: 'number', text: String(run.run_no) }),
    element('td', {}, state),
    element('td', { className: 'number', text: String(run.attempt) }),
    element('td', { className: 'clip', text: worker ?? '–', title: worker ?? '' }),
    took,
  )
  const why = element('td', { className: 'error wrap', colSpan: row.children.length, text: errorText(run) })
  return errorText(run) === '' || alone ? [row] : [row, element('tr', { className: 'why' }, why)]
}
