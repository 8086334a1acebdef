import type { EnrollTokenShape, RevokedShape, WorkerShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { ActionDialog, Dialog, notify } from '../parts/dialog.tsx'
import { Command, commandLine } from '../parts/text.tsx'
import { BASE_URL, send } from '../server/call.ts'
import { readAgain } from '../server/queries.ts'
import { formatInstant, formatNumber, words } from '../words.ts'
import { agentLine, canHash, hashOf, PLACEHOLDER, shellWord } from './workers-line.ts'

const w = words(
  {
    enroll: 'Enroll a worker',
    will: 'The server makes a line that registers one machine, once. The page shows the line only now.',
    name: 'Name',
    queues: 'Queues, separated by commas',
    make: 'Make the line',
    paste: (name: string, until: string) =>
      `Paste this line on the machine that becomes ${name}; it needs Node 20 or later. The line registers one machine, once, until ${until}. That machine can run it again. Keep the line secret: the first machine that runs it is registered.`,
    program: `Replace ${PLACEHOLDER} with the program that runs each job.`,
    authority:
      'If the server has a certificate of your own authority, use ichido workers enroll: its line trusts the authority.',
    loopback: (url: string) => `${url} can only be reached from its own machine. Set PUBLIC_URL on the server.`,
    insecure: (url: string) =>
      `${url} is not https: agents refuse it, because anyone on the network could read their tokens. Set TLS_CERT_FILE and TLS_KEY_FILE on the server, or PUBLIC_URL to the https address of a proxy in front of it. If you trust the whole network, add --insecure to the line.`,
    noHash: 'This page is not served over https, so the browser cannot check the agent file. Use the command line:',
    done: 'Close',
    drainTitle: (name: string) => `Drain the worker ${name}`,
    resumeTitle: (name: string) => `Resume the worker ${name}`,
    drain: 'Drain',
    resume: 'Resume',
    willDrain: 'The worker gets no new jobs until you resume it, also after a restart.',
    goesOn: (count: string, one: boolean) =>
      `${count} ${one ? 'job that it holds goes on' : 'jobs that it holds go on'} to the end.`,
    holdsNone: 'It holds no job now.',
    willResume: 'The worker gets jobs again.',
    drains: (name: string) => `The worker ${name} gets no new jobs.`,
    resumed: (name: string) => `The worker ${name} gets jobs again.`,
    revokeTitle: (name: string) => `Revoke the worker ${name}`,
    revoke: 'Revoke',
    willRevoke: (leases: string) =>
      `The worker is refused for good, and the jobs that it holds (${leases} now) are taken away. Jobs that it has not started go to the next worker at once. Jobs that it has started go to another worker after the continuation time, when the worker has stopped by itself. To let them end first, drain the worker.`,
    revoked: (name: string, leases: string) => `The worker ${name} is revoked. Leases taken away: ${leases}.`,
  },
  {
    enroll: 'ワーカーを登録',
    will: 'マシンを 1 台だけ、一度だけ登録できる行を作ります。この行は今しか表示されません。',
    name: '名前',
    queues: 'キュー(カンマ区切り)',
    make: '行を作る',
    paste: (name, until) =>
      `${name} にするマシンでこの行を貼り付けてください。Node 20 以降が必要です。${until} まで、1 台を一度だけ登録できます。同じマシンでは再び実行できます。行は秘密にしてください。最初に実行したマシンが登録されます。`,
    program: `${PLACEHOLDER} を、各ジョブを実行するプログラムに置き換えてください。`,
    authority:
      '独自の認証局の証明書を使うサーバーでは ichido workers enroll を使ってください。その行は認証局を信頼します。',
    loopback: (url) => `${url} にはこのマシンからしか接続できません。サーバーで PUBLIC_URL を設定してください。`,
    insecure: (url) =>
      `${url} は https ではないため、エージェントは接続を拒みます。サーバーで TLS_CERT_FILE と TLS_KEY_FILE を設定するか、PUBLIC_URL に https のプロキシを指定してください。ネットワーク全体を信頼できる場合だけ --insecure を付けてください。`,
    noHash:
      'このページは https ではないため、ブラウザーでエージェントのファイルを確認できません。コマンドを使ってください。',
    done: '閉じる',
    drainTitle: (name) => `ワーカー ${name} をドレイン`,
    resumeTitle: (name) => `ワーカー ${name} を再開`,
    drain: 'ドレイン',
    resume: '再開',
    willDrain: 'このワーカーは、再開するまで新しいジョブを受け取りません。ワーカーを再起動しても変わりません。',
    goesOn: (count) => `保持中のジョブ ${count} 件は最後まで続きます。`,
    holdsNone: '保持中のジョブはありません。',
    willResume: 'このワーカーは再びジョブを受け取ります。',
    drains: (name) => `ワーカー ${name} は新しいジョブを受け取りません。`,
    resumed: (name) => `ワーカー ${name} は再びジョブを受け取ります。`,
    revokeTitle: (name) => `ワーカー ${name} を失効`,
    revoke: '失効',
    willRevoke: (leases) =>
      `このワーカーは今後ずっと拒否され、保持中のジョブ(現在 ${leases} 件)は取り上げられます。未開始のジョブはすぐ次のワーカーに渡ります。開始済みのジョブは、ワーカーが自ら止まる継続時間の後に別のワーカーに渡ります。先にジョブを終わらせるには、ワーカーをドレインしてください。`,
    revoked: (name, leases) => `ワーカー ${name} を失効しました。取り上げたリース: ${leases} 件。`,
  },
)

/** The line that registers a machine. */
export interface Made {
  line: string
  name: string
  until: string
  url: string
}

export function EnrollDialog({ onMade, onClose }: { onMade(made: Made): void; onClose(): void }) {
  const [name, setName] = useState('')
  const [queues, setQueues] = useState('default')
  const named = queues.split(',').flatMap((queue) => (queue.trim() === '' ? [] : [queue.trim()]))
  const enroll = async () => {
    // Read first: without the agent file, a token would be made in vain.
    const agent = await fetch(`${BASE_URL}/agent.mjs`)
    if (!agent.ok) throw new Error(`${BASE_URL}/agent.mjs: ${agent.status}`)
    const sha256 = await hashOf(await agent.arrayBuffer())
    const body = { label: name, queues: named }
    const token = await send<EnrollTokenShape>('POST', '/v1/workers/enroll-tokens', body)
    const url = token.public_url ?? BASE_URL
    const line = agentLine({ url, token: token.enroll_token, name, queues: named, sha256 })
    onMade({ line, name, until: token.expires_at, url })
  }
  const ready = name.trim() !== '' && named.length > 0
  const flags = named.map((queue) => ` --queue ${shellWord(queue)}`).join('')
  return (
    <ActionDialog title={w().enroll} action={w().make} ready={ready && canHash()} run={enroll} onClose={onClose}>
      <p>{w().will}</p>
      <label class="field">
        <span>{w().name}</span>
        <input value={name} maxLength={128} required onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>{w().queues}</span>
        <input value={queues} required onInput={(event) => setQueues(event.currentTarget.value)} />
      </label>
      {!canHash() && (
        <>
          <p class="note">{w().noHash}</p>
          {ready && <Command text={commandLine(`workers enroll ${shellWord(name)}${flags}`)} />}
        </>
      )}
    </ActionDialog>
  )
}

/** Shows the line. The server does not keep the token in it, so it cannot be shown again. */
export function LineDialog({ made: { line, name, until, url }, onClose }: { made: Made; onClose(): void }) {
  const warning = warningOf(url)
  return (
    <Dialog title={w().enroll} onClose={onClose}>
      <form method="dialog">
        <h2>{w().enroll}</h2>
        <Command text={line} />
        <p>{w().paste(name, formatInstant(until))}</p>
        <p>{w().program}</p>
        {warning !== null && <p class="problem">{warning}</p>}
        {url.startsWith('https:') && <p class="note">{w().authority}</p>}
        <p class="ends">
          <button type="submit" class="main">
            {w().done}
          </button>
        </p>
      </form>
    </Dialog>
  )
}

function warningOf(url: string): string | null {
  const { hostname, protocol } = new URL(url)
  if (/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(hostname)) return w().loopback(url)
  return protocol === 'https:' ? null : w().insecure(url)
}

/** Drains a worker, or resumes one that drains. */
export function DrainDialog({ worker, onClose }: { worker: WorkerShape; onClose(): void }) {
  const { worker_id, name, live_leases, draining_since } = worker
  const drains = draining_since !== null
  const change = async () => {
    await send<WorkerShape>('POST', `/v1/workers/${worker_id}/${drains ? 'resume' : 'drain'}`)
    notify(drains ? w().resumed(name) : w().drains(name))
    void readAgain()
  }
  return (
    <ActionDialog
      title={drains ? w().resumeTitle(name) : w().drainTitle(name)}
      action={drains ? w().resume : w().drain}
      run={change}
      onClose={onClose}
    >
      <p>{drains ? w().willResume : w().willDrain}</p>
      {!drains && <p>{live_leases === 0 ? w().holdsNone : w().goesOn(formatNumber(live_leases), live_leases === 1)}</p>}
    </ActionDialog>
  )
}

export function RevokeDialog({ worker, onClose }: { worker: WorkerShape; onClose(): void }) {
  const revoke = async () => {
    const { fenced_leases } = await send<RevokedShape>('DELETE', `/v1/workers/${worker.worker_id}`)
    notify(w().revoked(worker.name, formatNumber(fenced_leases)))
    void readAgain()
  }
  return (
    <ActionDialog title={w().revokeTitle(worker.name)} action={w().revoke} danger run={revoke} onClose={onClose}>
      <p>{w().willRevoke(formatNumber(worker.live_leases))}</p>
    </ActionDialog>
  )
}
