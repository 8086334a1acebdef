import { ROLES, type TokenShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { ActionDialog, Dialog, notify } from '../parts/dialog.tsx'
import { Empty, Loaded } from '../parts/loaded.tsx'
import { Age, Copy, Instant } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { CALM_MS, readAgain, useRead } from '../server/queries.ts'
import { useCan, useSession } from '../server/session.ts'
import { words } from '../words.ts'

const w = words(
  {
    title: 'Tokens',
    caption: 'API tokens, without their secrets',
    make: 'Make a token',
    user: 'User',
    role: 'Role',
    name: 'Purpose',
    days: 'Days until it expires (empty: never)',
    made: 'Made',
    expires: 'Expires',
    never: 'never',
    revoked: 'revoked',
    revoke: 'Revoke',
    revokeTitle: (user: string) => `Revoke a token of ${user}`,
    revokeText: 'Programs and sessions that use the token are refused from now on. This cannot be undone.',
    wasRevoked: 'The token is revoked.',
    once: 'Copy the token now. The server does not show it again.',
    token: 'the token',
    done: 'Close',
    none: 'No tokens yet',
    noneText: 'This server needs no token as long as none was made, and answers only on this machine.',
    first:
      'The first token ends this for good: from then on, every caller needs a token. The dashboard will ask you to sign in with it.',
  },
  {
    title: 'トークン',
    caption: 'API トークン(秘密の値は含みません)',
    make: 'トークンを作る',
    user: 'ユーザー',
    role: '権限',
    name: '用途',
    days: '有効日数(空欄なら無期限)',
    made: '作成',
    expires: '期限',
    never: 'なし',
    revoked: '失効済み',
    revoke: '失効させる',
    revokeTitle: (user) => `${user} のトークンを失効させる`,
    revokeText: 'このトークンを使うプログラムとセッションは、以後すべて拒否されます。元には戻せません。',
    wasRevoked: 'トークンを失効させました。',
    once: '今すぐコピーしてください。サーバーは二度と表示しません。',
    token: 'トークン',
    done: '閉じる',
    none: 'トークンはまだありません',
    noneText: 'トークンが 1 つもない間、このサーバーはトークンなしで、このマシンからのみ使えます。',
    first:
      '最初のトークンを作ると、以後はすべての呼び出しにトークンが必要になります。元には戻せません。ダッシュボードもサインインを求めます。',
  },
)

const DAY_SECONDS = 86_400

export default function Tokens() {
  const found = useRead<{ data: TokenShape[] }>('/v1/tokens', CALM_MS)
  const mayMake = useCan('administer')
  const [making, setMaking] = useState(false)
  const [revoking, setRevoking] = useState<TokenShape | null>(null)
  const [secret, setSecret] = useState<string | null>(null)
  return (
    <>
      <div class="head">
        <h2>{w().title}</h2>
        {mayMake && (
          <button type="button" class="main" onClick={() => setMaking(true)}>
            {w().make}
          </button>
        )}
      </div>
      <div class="card list">
        <Loaded
          of={found}
          empty={{
            is: ({ data }) => data.length === 0,
            show: (
              <Empty title={w().none}>
                <p>{w().noneText}</p>
              </Empty>
            ),
          }}
        >
          {({ data }) => <TokenTable tokens={data} revoke={setRevoking} />}
        </Loaded>
      </div>
      {making && <MakeToken onMade={setSecret} onClose={() => setMaking(false)} />}
      {revoking !== null && (
        <ActionDialog
          title={w().revokeTitle(revoking.user_id)}
          action={w().revoke}
          danger
          run={async () => {
            await send('DELETE', `/v1/tokens/${revoking.token_id}`)
            notify(w().wasRevoked)
            void readAgain()
          }}
          onClose={() => setRevoking(null)}
        >
          <p>{w().revokeText}</p>
        </ActionDialog>
      )}
      {secret !== null && <Secret secret={secret} onClose={() => setSecret(null)} />}
    </>
  )
}

function TokenTable({ tokens, revoke }: { tokens: readonly TokenShape[]; revoke(token: TokenShape): void }) {
  return (
    <table>
      <caption class="unseen">{w().caption}</caption>
      <thead>
        <tr>
          <th scope="col">{w().user}</th>
          <th scope="col">{w().role}</th>
          <th scope="col" class="medium">
            {w().name}
          </th>
          <th scope="col" class="number wide">
            {w().made}
          </th>
          <th scope="col" class="medium">
            {w().expires}
          </th>
          <th scope="col">
            <span class="unseen">{w().revoke}</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {tokens.map((token) => (
          <tr key={token.token_id}>
            <td>{token.user_id}</td>
            <td>{token.role}</td>
            <td class="medium clip" title={token.name}>
              {token.name}
            </td>
            <td class="number wide">
              <Age of={token.created_at} />
            </td>
            <td class="medium">{token.expires_at === null ? w().never : <Instant of={token.expires_at} />}</td>
            <td>
              {token.revoked_at === null ? (
                <button type="button" class="danger" onClick={() => revoke(token)}>
                  {w().revoke}
                </button>
              ) : (
                <span class="faint">{w().revoked}</span>
              )}
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

function MakeToken({ onMade, onClose }: { onMade(secret: string): void; onClose(): void }) {
  const { data: session } = useSession()
  const [user, setUser] = useState(session?.user_id ?? '')
  const [role, setRole] = useState('submitter')
  const [name, setName] = useState('')
  const [days, setDays] = useState('')
  const make = async () => {
    const body = {
      user_id: user.trim(),
      role,
      ...(name.trim() === '' ? {} : { name: name.trim() }),
      ...(days === '' ? {} : { ttl_seconds: Math.round(Number(days) * DAY_SECONDS) }),
    }
    const { token } = await send<{ token: string }>('POST', '/v1/tokens', body)
    onMade(token)
  }
  return (
    <ActionDialog title={w().make} action={w().make} ready={user.trim() !== ''} run={make} onClose={onClose}>
      {session?.open && <p class="trouble">{w().first}</p>}
      <label class="field">
        <span>{w().user}</span>
        <input value={user} required onInput={(event) => setUser(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>{w().role}</span>
        <select value={role} onChange={(event) => setRole(event.currentTarget.value)}>
          {ROLES.map((one) => (
            <option key={one} value={one}>
              {one}
            </option>
          ))}
        </select>
      </label>
      <label class="field">
        <span>{w().name}</span>
        <input value={name} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <label class="field">
        <span>{w().days}</span>
        <input type="number" min="1" value={days} onInput={(event) => setDays(event.currentTarget.value)} />
      </label>
    </ActionDialog>
  )
}

/** The page reads again only when the secret was seen: on an open server, the sign-in would hide it. */
function Secret({ secret, onClose }: { secret: string; onClose(): void }) {
  const close = () => {
    onClose()
    void readAgain()
  }
  return (
    <Dialog title={w().make} onClose={close}>
      <form method="dialog">
        <p>{w().once}</p>
        <p class="command">
          <code>{secret}</code>
          <Copy text={secret} name={w().token} />
        </p>
        <p class="ends">
          <button type="submit" class="main">
            {w().done}
          </button>
        </p>
      </form>
    </Dialog>
  )
}
