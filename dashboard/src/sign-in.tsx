import { useState } from 'preact/hooks'
import { messageOf } from './parts/loaded.tsx'
import { commandLine, IN_CLONE } from './parts/text.tsx'
import { signIn } from './server/session.ts'
import { words } from './words.ts'

const w = words(
  {
    title: 'This server needs a token',
    make: 'With an admin token in ICHIDO_TOKEN, this command makes one:',
    otherwise: 'Without one, stop the server, run this with its DATA_DIR or DATABASE_URL, and start the server again:',
    kept: 'The browser keeps a session cookie for 12 hours, not the token.',
    token: 'API token',
    signIn: 'Sign in',
  },
  {
    title: 'このサーバーにはトークンが必要です',
    make: 'ICHIDO_TOKEN に管理者トークンがあれば、次のコマンドで作れます。',
    otherwise: 'なければサーバーを止め、同じ DATA_DIR か DATABASE_URL で次を実行してから再び起動してください。',
    kept: 'ブラウザーはトークンではなく、12 時間有効なセッション Cookie を保持します。',
    token: 'API トークン',
    signIn: 'サインイン',
  },
)

export function SignIn() {
  const [problem, setProblem] = useState<string | null>(null)
  const [working, setWorking] = useState(false)
  const submit = async (event: SubmitEvent & { currentTarget: HTMLFormElement }) => {
    event.preventDefault()
    const token = new FormData(event.currentTarget).get('token')
    setWorking(true)
    setProblem(null)
    try {
      await signIn(String(token).trim())
    } catch (error) {
      setProblem(messageOf(error))
      setWorking(false)
    }
  }
  return (
    <main>
      <form class="card pad sign-in" onSubmit={submit}>
        <h1>Ichido</h1>
        <h2>{w().title}</h2>
        <p class="faint">{w().make}</p>
        <pre class="shell">{commandLine('token create --user me --role admin')}</pre>
        <p class="faint">{w().otherwise}</p>
        <pre class="shell">{IN_CLONE} token create --user me --role admin</pre>
        <label for="token">{w().token}</label>
        <div class="line">
          <input id="token" name="token" type="password" autocomplete="off" spellcheck={false} required />
          <button type="submit" class="main" disabled={working}>
            {w().signIn}
          </button>
        </div>
        {problem !== null && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <p class="note">{w().kept}</p>
      </form>
    </main>
  )
}
