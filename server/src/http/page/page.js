// The dashboard: jobs with their states, live. It has no framework and no build.

import { clearDetail, showDetail } from './page-detail.js'
import {
  $,
  commandLine,
  copy,
  element,
  errorText,
  label,
  problem,
  STATES,
  setPill,
  setSpan,
  setText,
  shortId,
  tick,
} from './page-dom.js'

const REFRESH_MS = 1_000
const TIMEOUT_MS = 10_000
const ROWS_MAX = 50
/** Screen readers hear of new counts at most this often. */
const SUMMARY_MS = 5_000
const TOKEN = 'ichido.token'
const small = matchMedia('(max-width: 74.99rem)')

class SignInNeeded extends Error {}
class Refused extends Error {}

// ---- the server ----

async function call(path, init = {}) {
  const token = sessionStorage.getItem(TOKEN)
  const headers = token === null ? {} : { authorization: `Bearer ${token}` }
  const response = await fetch(path, { ...init, headers, cache: 'no-store', signal: AbortSignal.timeout(TIMEOUT_MS) })
  const body = await response.json()
  const message = body?.error?.message ?? `The server answered ${response.status}`
  if (response.status === 401) throw new SignInNeeded(message)
  if (!response.ok) throw new Refused(message)
  return body
}

// ---- counts and filters ----

const filter = { state: '', queue: '' }
const chips = new Map()

for (const state of ['', ...STATES]) {
  const count = element('b', { text: '–' })
  const chip = element('button', { type: 'button', className: 'chip', data: { state } }, count, element('span'))
  setText(chip.lastChild, state === '' ? 'All' : label(state))
  chip.ariaPressed = String(state === '')
  chip.addEventListener('click', () => choose(filter.state === state ? '' : state))
  chips.set(state, { chip, count })
  $('states').append(chip)
}

function choose(state, queue = filter.queue) {
  Object.assign(filter, { state, queue })
  for (const [name, { chip }] of chips) chip.ariaPressed = String(name === state)
  if ($('queue').value.trim() !== queue) $('queue').value = queue
  refresh()
}

function chooseQueue() {
  const queue = $('queue').value.trim()
  if (queue !== filter.queue && $('queue').checkValidity()) choose(filter.state, queue)
}

let summaryMs = 0

function showCounts(counts) {
  const count = (state) => counts[state] ?? 0
  const all = STATES.reduce((sum, state) => sum + count(state), 0)
  for (const [state, chip] of chips) setText(chip.count, (state === '' ? all : count(state)).toLocaleString())
  for (const [state, { chip }] of chips) chip.classList.toggle('none', state !== '' && count(state) === 0)
  const told = STATES.filter((state) => count(state) > 0).map(
    (state) => `${count(state)} ${label(state).toLowerCase()}`,
  )
  if (Date.now() - summaryMs < SUMMARY_MS) return
  summaryMs = Date.now()
  setText($('summary'), told.length === 0 ? 'No jobs' : `Jobs: ${told.join(', ')}`)
}

// ---- the list ----

const rows = new Map()

function makeRow(id) {
  const short = shortId(id)
  const open = element('button', { type: 'button', className: 'open', text: short, title: id })
  open.ariaLabel = `Details of job ${short}`
  const copyId = element('button', { type: 'button', className: 'copy', text: 'Copy', data: { copy: id } })
  copyId.ariaLabel = `Copy the id of job ${short}`
  const wide = () => element('td', { className: 'wide' })
  const number = (more = '') => element('td', { className: `number ${more}` })
  const cells = {
    job: element('td', { className: 'job' }, open, copyId),
    state: element('td', {}, element('span')),
    kind: element('td', { className: 'clip' }, element('span'), element('small')),
    queue: wide(),
    user: wide(),
    attempt: number('wide'),
    age: number(),
    duration: number('medium'),
    error: element('td', { className: 'medium clip error' }),
  }
  const row = element('tr', { data: { id } }, ...Object.values(cells))
  return { row, open, cells }
}

function showRow({ row, cells }, job) {
  setPill(cells.state.firstChild, job)
  setText(cells.kind.firstChild, job.kind)
  setText(cells.kind.lastChild, job.queue)
  setText(cells.queue, job.queue)
  setText(cells.user, job.user_id)
  setText(cells.attempt, String(job.attempt))
  setSpan(cells.age, job.created_at, null, 1)
  setSpan(cells.duration, job.started_at, job.finished_at)
  setText(cells.error, errorText(job))
  cells.error.title = errorText(job)
  row.ariaCurrent = job.job_id === chosen ? 'true' : null
}

function showJobs({ data: jobs, next_cursor }) {
  const seen = new Set(jobs.map((job) => job.job_id))
  for (const [id, { row }] of rows) {
    if (seen.has(id)) continue
    row.remove()
    rows.delete(id)
  }
  jobs.forEach((job, place) => {
    const known = rows.get(job.job_id)
    const made = known ?? makeRow(job.job_id)
    if (known === undefined) rows.set(job.job_id, made)
    showRow(made, job)
    const there = $('rows').children[place]
    if (there !== made.row) $('rows').insertBefore(made.row, there ?? null)
  })
  const filtered = filter.state !== '' || filter.queue !== ''
  $('table').hidden = jobs.length === 0
  $('empty').hidden = jobs.length > 0 || filtered
  $('unmatched').hidden = jobs.length > 0 || !filtered
  $('more').hidden = next_cursor === null
  offerQueues(jobs)
}

const queues = new Set()

function offerQueues(jobs) {
  for (const { queue } of jobs) {
    if (queues.has(queue)) continue
    queues.add(queue)
    $('queues').append(element('option', { value: queue }))
  }
}

// ---- one job ----

let chosen = idInHash()

function idInHash() {
  return location.hash === '' ? null : location.hash.slice(1)
}

function closeDetail() {
  const opener = rows.get(chosen)?.open
  history.replaceState(null, '', location.pathname + location.search)
  hashChanged()
  opener?.focus()
}

function hashChanged() {
  chosen = idInHash()
  for (const [id, { row }] of rows) row.ariaCurrent = id === chosen ? 'true' : null
  $('detail').hidden = chosen === null
  document.body.classList.toggle('detailed', chosen !== null)
  coverRest()
  if (chosen === null) return
  clearDetail(chosen)
  $('detail').focus()
  refresh()
}

/** On small screens the panel covers the rest of the page, which is then inert. */
function coverRest() {
  for (const part of document.querySelectorAll('.top, .filters, .list')) part.inert = chosen !== null && small.matches
}

async function cancelChosen() {
  const id = chosen
  $('detail-cancel').disabled = true
  problem('detail-problem', null)
  try {
    await call(`v1/jobs/${encodeURIComponent(id)}/cancel`, { method: 'POST' })
  } catch (error) {
    if (id === chosen) {
      $('detail-cancel').disabled = false
      problem('detail-problem', `Not canceled. ${error.message}`)
    }
  }
  refresh()
}

// ---- refreshing ----

let timer
let busy = false
let again = false
let reachedMs = 0

async function refresh() {
  clearTimeout(timer)
  if (busy) {
    again = true
    return
  }
  busy = true
  try {
    await load()
    reachedMs = Date.now()
    // The page may have been hidden meanwhile.
    if (document.hidden) live('paused', 'Paused')
    else live('on', 'Live')
    problem('trouble', null)
  } catch (error) {
    failed(error)
  }
  busy = false
  const waitMs = again ? 0 : REFRESH_MS
  again = false
  if (!document.hidden && $('sign-in').hidden) timer = setTimeout(refresh, waitMs)
}

async function load() {
  const { state, queue } = filter
  const asked = new URLSearchParams({ limit: String(ROWS_MAX) })
  if (state !== '') asked.set('state', state)
  if (queue !== '') asked.set('queue', queue)
  const id = chosen
  const [counts, jobs, detail] = await Promise.all([
    orRefused(call('v1/stats')),
    call(`v1/jobs?${asked}`),
    id === null ? null : orRefused(loadJob(id)),
  ])
  $('jobs').hidden = false
  if (!(counts instanceof Refused)) showCounts(counts)
  if (state === filter.state && queue === filter.queue) showJobs(jobs)
  if (id !== null && id === chosen) {
    if (detail instanceof Refused) problem('detail-problem', detail.message)
    else showDetail(detail)
  }
  for (const node of document.querySelectorAll('[data-from]:not([data-to])')) tick(node)
}

let outcome = null

/** The job, with its result if it has one. A result does not change, so it is read once. */
async function loadJob(id) {
  const path = `v1/jobs/${encodeURIComponent(id)}`
  const job = await call(path)
  if (job.state !== 'SUCCEEDED') return job
  if (outcome?.job_id !== id) outcome = await call(`${path}/result`)
  return { ...job, result: outcome.result }
}

/** A refused or failed call does not stop the rest of the page. */
async function orRefused(answer) {
  try {
    return await answer
  } catch (error) {
    if (error instanceof Refused) return error
    throw error
  }
}

function failed(error) {
  if (error instanceof SignInNeeded) {
    live('paused', 'Token needed')
    problem('trouble', null)
    askForToken(error.message)
  } else if (error instanceof Refused) {
    live('off', 'Refused')
    problem('trouble', `The server refused: ${error.message}`)
  } else {
    live('off', 'Offline')
    const since = reachedMs === 0 ? '' : ` The page shows the state of ${new Date(reachedMs).toLocaleTimeString()}.`
    problem('trouble', `The server cannot be reached. Trying again every second.${since}`)
  }
}

function live(state, text) {
  if ($('live').dataset.live !== state) $('live').dataset.live = state
  document.body.classList.toggle('stale', state === 'off')
  setText($('live').firstElementChild, text)
}

// ---- credentials ----

function askForToken(message) {
  problem('sign-in-problem', sessionStorage.getItem(TOKEN) === null ? null : message)
  sessionStorage.removeItem(TOKEN)
  $('jobs').hidden = true
  $('sign-out').hidden = true
  $('sign-in').hidden = false
  $('token').focus()
}

function signIn(event) {
  event.preventDefault()
  sessionStorage.setItem(TOKEN, $('token').value.trim())
  $('token').value = ''
  $('sign-in').hidden = true
  $('sign-out').hidden = false
  refresh()
}

function signOut() {
  sessionStorage.removeItem(TOKEN)
  location.reload()
}

// ---- wiring ----

document.addEventListener('click', (event) => {
  const target = event.target.closest('[data-copy]')
  if (target !== null) copy(target)
})
$('rows').addEventListener('click', (event) => {
  if (event.target.closest('[data-copy]') !== null || getSelection().toString() !== '') return
  const { id } = event.target.closest('tr').dataset
  if (id === chosen) closeDetail()
  else location.hash = id
})
// A half-typed name matches nothing, so the filter waits for a known or finished name.
$('queue').addEventListener('input', () => (queues.has($('queue').value) || $('queue').value === '') && chooseQueue())
$('queue').addEventListener('change', chooseQueue)
$('clear').addEventListener('click', () => choose('', ''))
$('detail-close').addEventListener('click', closeDetail)
$('detail-cancel').addEventListener('click', cancelChosen)
$('sign-in').addEventListener('submit', signIn)
$('sign-out').addEventListener('click', signOut)
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && chosen !== null) closeDetail()
})
addEventListener('hashchange', hashChanged)
small.addEventListener('change', coverRest)
document.addEventListener('visibilitychange', () => {
  clearTimeout(timer)
  if (document.hidden) live('paused', 'Paused')
  else refresh()
})

for (const node of document.querySelectorAll('[data-command]')) setText(node, commandLine(node.dataset.command))
$('demo-copy').dataset.copy = commandLine('demo')
$('sign-out').hidden = sessionStorage.getItem(TOKEN) === null
if (chosen === null) refresh()
else hashChanged()
