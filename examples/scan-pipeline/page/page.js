/** A stream that was refused, rather than interrupted, is reopened after this time. */
const RETRY_MS = 500

const $ = (id) => document.getElementById(id)
const stages = [...document.querySelectorAll('#stages > li')]
const log = $('log')

/** The job in the address, so that a reload or a shared link shows the same job. */
const jobInAddress = () => new URLSearchParams(location.search).get('job')

/** The shown job. It changes with the address. */
let shown = null

async function post(path, headers = {}) {
  const answer = await fetch(path, { method: 'POST', headers })
  if (!answer.ok) throw Object.assign(new Error(`${path}: ${answer.status}`), { status: answer.status })
  return answer.status === 204 ? null : answer.json()
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

/** Retries until the server has answered. Because of the key, it is one scan. */
async function submit() {
  const headers = { 'idempotency-key': crypto.randomUUID() }
  for (;;) {
    try {
      return (await post('scans', headers)).job_id
    } catch (error) {
      if (error.status !== undefined && error.status < 500) throw error
      tellLive('waiting', 'Waiting for the server')
      await wait(RETRY_MS)
    }
  }
}

class Follower {
  constructor(jobId) {
    this.jobId = jobId
    this.cursor = 0
    this.over = false
    this.source = null
    void this.open()
  }

  /** Gets a new token each time: a token lasts for minutes, a page can be open for longer. */
  async open() {
    if (this.over) return
    try {
      const { token } = await post(`scans/${this.jobId}/stream-token`)
      if (this.over) return
      const query = new URLSearchParams({ after: this.cursor, stream_token: token })
      this.source = new EventSource(`v1/jobs/${this.jobId}/events?${query}`)
    } catch (error) {
      if (error.status === 404) return this.end('failed', 'There is no such scan')
      this.again()
      return
    }
    this.source.onopen = () => tellLive('on', 'Live')
    this.source.onmessage = ({ data }) => this.take(JSON.parse(data))
    this.source.addEventListener('reset', ({ data }) => this.reset(JSON.parse(data)))
    this.source.addEventListener('end', ({ data }) => {
      const { state } = JSON.parse(data)
      if (state === 'SUCCEEDED') this.end('done', 'Done')
      else this.end('failed', `Ended: ${state.toLowerCase()}`)
    })
    this.source.onerror = () => {
      tellLive('waiting', 'Waiting for the server')
      // The browser reopens an interrupted stream by itself, after the last event it has seen.
      if (this.source.readyState === EventSource.CLOSED) this.again()
    }
  }

  async again() {
    this.source?.close()
    tellLive('waiting', 'Waiting for the server')
    await wait(RETRY_MS)
    await this.open()
  }

  /** Shows events as they arrive, unfiltered, and counts missing and repeated ones. There should be none. */
  take(event) {
    if (event.cursor <= this.cursor) repeated++
    else missing += event.cursor - this.cursor - 1
    this.cursor = Math.max(this.cursor, event.cursor)
    show(event)
  }

  /** Older events were deleted, so the stream sends only the last event of each stage. */
  reset({ cursor, stages: last }) {
    clear()
    for (const event of Object.values(last).sort((one, other) => one.cursor - other.cursor)) show(event)
    this.cursor = cursor
  }

  end(live, text) {
    this.close()
    tellLive(live, text)
    if (live === 'failed') problem(`${text}.`)
  }

  close() {
    this.over = true
    this.source?.close()
  }
}

let missing = 0
let repeated = 0

function clear() {
  missing = repeated = 0
  log.replaceChildren()
  for (const stage of stages) {
    delete stage.dataset.state
    stage.removeAttribute('aria-current')
    stage.querySelector('ul').replaceChildren()
  }
  problem(null)
  tally()
}

function show(event) {
  const { stage: name, data } = event
  const text = name === 'run' ? runText(data) : data.text
  const stage = stages.find(({ dataset }) => dataset.stage === name)
  if (stage !== undefined) {
    stage.querySelector('ul').append(make('li', text))
    const place = stages.indexOf(stage)
    for (const [index, each] of stages.entries()) mark(each, index, place, name === 'done')
    $('said').textContent = `${stage.querySelector('h3').textContent}: ${text}`
  }
  log.append(row(event, text))
  tally()
}

function mark(stage, index, place, isDone) {
  if (index > place) return
  stage.dataset.state = index < place || isDone ? 'done' : 'now'
  if (stage.dataset.state === 'now') stage.setAttribute('aria-current', 'step')
  else stage.removeAttribute('aria-current')
}

function runText({ state, attempt }) {
  const words = state.toLowerCase()
  return attempt > 1 ? `${words}, attempt ${attempt}` : words
}

function row({ cursor, stage, seq, timestamp }, text) {
  const tr = make('tr')
  tr.dataset.cursor = cursor
  const time = new Date(timestamp).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit' })
  tr.append(
    make('td', cursor, 'number'),
    make('td', stage),
    make('td', seq, 'number'),
    make('td', text),
    make('td', time, 'number time'),
  )
  return tr
}

function make(name, text = '', className = '') {
  const element = document.createElement(name)
  element.textContent = text
  if (className !== '') element.className = className
  return element
}

function tally() {
  const count = log.childElementCount
  $('events').hidden = count === 0
  $('tally').textContent = count === 0 ? 'Nothing yet' : `${count} events, ${missing} missing, ${repeated} repeated`
}

function tellLive(live, text) {
  $('live').dataset.live = live
  if ($('live').textContent !== text) $('live').textContent = text
}

function problem(text) {
  $('problem').hidden = text === null
  $('problem').textContent = text ?? ''
}

function follow() {
  shown?.close()
  clear()
  const jobId = jobInAddress()
  shown = jobId === null ? null : new Follower(jobId)
  $('title').textContent = jobId === null ? 'No scan yet' : `Scan ${jobId.slice(-8)}`
  if (jobId === null) tellLive('idle', 'Ready')
}

$('scan').addEventListener('click', async () => {
  $('scan').disabled = true
  try {
    history.pushState(null, '', `?${new URLSearchParams({ job: await submit() })}`)
    follow()
  } catch (error) {
    problem(`The scan was refused (${error.message}).`)
  }
  $('scan').disabled = false
})
$('kill').addEventListener('click', () => post('kill').catch((error) => problem(error.message)))
addEventListener('popstate', follow)
follow()
