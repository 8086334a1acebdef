// Nodes of the page. Data of the server become text, never markup.

export const STATES = ['PENDING', 'ASSIGNED', 'RUNNING', 'ORPHANED', 'SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED']
/** Jobs that can still be canceled. */
export const ACTIVE = new Set(['PENDING', 'ASSIGNED', 'RUNNING', 'ORPHANED'])
const COPIED_MS = 1_500

export const $ = (id) => document.getElementById(id)
export const label = (state) => (state.charAt(0) + state.slice(1).toLowerCase()).replace('_', ' ')
export const shortId = (id) => id.slice(-8)

export function problem(id, text) {
  $(id).hidden = text === null
  setText($(id), text ?? '')
}

export function element(tag, { text, data, ...properties } = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties)
  if (text !== undefined) node.textContent = text
  Object.assign(node.dataset, data)
  node.append(...children)
  return node
}

/** Changes the page only where the text differs, so that selections stay and nothing flickers. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text
}

export function setPill(node, job) {
  node.className = 'pill'
  node.dataset.state = job.state
  setText(node, ACTIVE.has(job.state) && job.cancel_requested_at ? 'Canceling' : label(job.state))
}

/** A duration until `to`, or until now. An age shows only its first unit. */
export function setSpan(node, from, to, units = 2) {
  if (from === null) {
    delete node.dataset.from
    setText(node, '–')
    return
  }
  node.dataset.from = from
  if (to === null) delete node.dataset.to
  else node.dataset.to = to
  node.dataset.units = units
  node.title = new Date(from).toLocaleString()
  tick(node)
}

export function tick(node) {
  const { from, to, units } = node.dataset
  const ms = Math.max(0, (to === undefined ? Date.now() : Date.parse(to)) - Date.parse(from))
  setText(node, units === '1' && ms < 1_000 ? 'now' : duration(ms).slice(0, Number(units)).join(' '))
}

/** The units of a duration, largest first. */
function duration(ms) {
  const seconds = Math.floor(ms / 1_000)
  if (seconds < 1) return [`${ms} ms`]
  if (seconds < 60) return [`${seconds} s`]
  if (seconds < 3_600) return [`${Math.floor(seconds / 60)} min`, `${seconds % 60} s`]
  if (seconds < 86_400) return [`${Math.floor(seconds / 3_600)} h`, `${Math.floor((seconds % 3_600) / 60)} min`]
  return [`${Math.floor(seconds / 86_400)} d`, `${Math.floor((seconds % 86_400) / 3_600)} h`]
}

/** Why a job or run ended; empty if the state says it, as in Canceled. A code at the start of the message is not repeated. */
export function errorText({ state, error }) {
  if (error === null || (state === 'CANCELED' && error.code === state)) return ''
  const { code, message } = error
  return message === code || message.startsWith(`${code}:`) ? message : `${code}: ${message}`
}

export async function copy(button) {
  const text = button.dataset.copy
  try {
    await navigator.clipboard.writeText(text)
  } catch {
    // Only secure pages may write to the clipboard. On other pages the selected text can be copied.
    const area = element('textarea', { value: text, className: 'unseen' })
    document.body.append(area)
    area.select()
    document.execCommand('copy')
    area.remove()
  }
  const before = button.textContent
  if (before === 'Copied') return
  setText(button, 'Copied')
  setTimeout(() => setText(button, before), COPIED_MS)
}

/** The default server of the command line. */
const DEFAULT_URLS = ['http://127.0.0.1:8001', 'http://localhost:8001']

/** A command to paste into a shell. It calls the server of this page. */
export function commandLine(rest) {
  const url = new URL('.', location.href).href.replace(/\/$/, '')
  const word = /^[\w@%+=:,./-]+$/.test(url) ? url : `'${url.replaceAll("'", '%27')}'`
  return `${DEFAULT_URLS.includes(url) ? '' : `ICHIDO_URL=${word} `}npm run -s ichido -- ${rest}`
}
