import { useEffect, useState } from 'preact/hooks'
import { Link, Redirect, Route, Switch, useLocation } from 'wouter-preact'
import icon from './icon.svg'
import { KeyboardHelp, useKeyboard } from './keyboard.tsx'
import { Toast } from './parts/dialog.tsx'
import { messageOf } from './parts/loaded.tsx'
import { formatDuration, nowMs } from './parts/text.tsx'
import { NAVIGATION, PAGES, pageWords } from './routes.tsx'
import { CALM_MS, connection, paused, useRead } from './server/queries.ts'
import { type Session, signOut, useSession } from './server/session.ts'
import { SignIn } from './sign-in.tsx'
import { chooseTheme, THEMES, theme } from './theme.ts'
import { chooseLanguage, LANGUAGES, language, words } from './words.ts'

const w = words(
  {
    live: 'Live',
    paused: 'Paused',
    pause: 'Pause updates',
    stop: 'Pause',
    go: 'Resume',
    resume: 'Resume updates',
    offline: 'Offline',
    offlineSince: (age: string) =>
      `The server does not answer. The page shows what it knew ${age} ago, and keeps trying.`,
    offlineNever: 'The server does not answer. The page keeps trying.',
    menu: 'Menu',
    navigation: 'Pages',
    skip: 'Skip to the content',
    apiDocs: 'API docs',
    signOut: 'Sign out',
    as: (user: string, role: string) => `${user} (${role})`,
    open: 'No token needed',
    theme: 'Theme',
    system: 'System',
    light: 'Light',
    dark: 'Dark',
    language: 'Language',
    shortcuts: 'Keyboard shortcuts',
    unknown: 'There is no such page.',
    openAlerts: (count: number) => `${count} open`,
  },
  {
    live: '更新中',
    paused: '停止中',
    pause: '更新を止める',
    stop: '止める',
    go: '再開',
    resume: '更新を再開',
    offline: 'オフライン',
    offlineSince: (age) => `サーバーが応答しません。${age}前の内容を表示し、接続を試み続けています。`,
    offlineNever: 'サーバーが応答しません。接続を試み続けています。',
    menu: 'メニュー',
    navigation: 'ページ',
    skip: '本文へ移動',
    apiDocs: 'API ドキュメント',
    signOut: 'サインアウト',
    as: (user, role) => `${user}(${role})`,
    open: 'トークン不要',
    theme: 'テーマ',
    system: 'システム',
    light: 'ライト',
    dark: 'ダーク',
    language: '言語',
    shortcuts: 'キーボード操作',
    unknown: 'このページはありません。',
    openAlerts: (count) => `${count} 件`,
  },
)

export function App() {
  const { data: session, error } = useSession()
  if (session === undefined) {
    return (
      <main>
        {error !== null && (
          <p class="trouble" role="alert">
            {messageOf(error)}
          </p>
        )}
      </main>
    )
  }
  return session === null ? <SignIn /> : <Frame key={session.csrf_token} session={session} />
}

function Frame({ session }: { session: Session }) {
  const [location] = useLocation()
  const [menuShown, showMenu] = useState(false)
  const [helpShown, showHelp] = useState(false)
  useKeyboard(() => showHelp(true))
  useEffect(() => showMenu(false), [location])
  return (
    <div class="frame">
      <a class="unseen" href="#content">
        {w().skip}
      </a>
      <div class="menu">
        <button type="button" class="quiet" aria-expanded={menuShown} onClick={() => showMenu(!menuShown)}>
          {w().menu}
        </button>
        Ichido
        <Live />
      </div>
      <Side session={session} shown={menuShown} onHelp={() => showHelp(true)} />
      <main id="content">
        <Offline />
        <Switch>
          {PAGES.map(({ path, Page }) => (
            <Route key={path} path={path}>
              {(params: Record<string, string | undefined>) =>
                path === '/' && !session.abilities.includes('readAll') ? (
                  <Redirect to="/jobs" />
                ) : (
                  <Page params={params} />
                )
              }
            </Route>
          ))}
          <Route>
            <p class="trouble">{w().unknown}</p>
          </Route>
        </Switch>
      </main>
      <Toast />
      {helpShown && <KeyboardHelp onClose={() => showHelp(false)} />}
    </div>
  )
}

function Side({ session, shown, onHelp }: { session: Session; shown: boolean; onHelp(): void }) {
  const [location] = useLocation()
  const isCurrent = (path: string) => (path === '/' ? location === '/' : `${location}/`.startsWith(`${path}/`))
  return (
    <nav class={shown ? 'side shown' : 'side'} aria-label={w().navigation}>
      <h1>
        <img src={icon} alt="" width="28" height="28" /> Ichido
      </h1>
      {NAVIGATION.map(({ word, links }) => {
        const offered = links.filter(({ needs }) => session.abilities.includes(needs))
        return (
          offered.length > 0 && (
            <>
              <h2>{pageWords()[word]}</h2>
              {offered.map(({ path, word }) => (
                <Link key={path} href={path} aria-current={isCurrent(path) ? 'page' : undefined}>
                  {pageWords()[word]}
                  {path === '/alerts' && <AlertBadge />}
                </Link>
              ))}
            </>
          )
        )
      })}
      <footer>
        <div class="between">
          <Live />
          <button
            type="button"
            class="quiet"
            aria-label={paused.value ? w().resume : w().pause}
            onClick={() => (paused.value = !paused.value)}
          >
            {paused.value ? w().go : w().stop}
          </button>
        </div>
        <div class="between">
          <label class="field">
            <span>{w().theme}</span>
            <select value={theme.value} onChange={(event) => chooseTheme(event.currentTarget.value as never)}>
              {THEMES.map((name) => (
                <option key={name} value={name}>
                  {w()[name]}
                </option>
              ))}
            </select>
          </label>
          <label class="field">
            <span>{w().language}</span>
            <select value={language.value} onChange={(event) => chooseLanguage(event.currentTarget.value as never)}>
              {Object.entries(LANGUAGES).map(([tag, name]) => (
                <option key={tag} value={tag} lang={tag}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        </div>
        <span class="line">
          <a href="docs">{w().apiDocs}</a>
          <button type="button" class="link" onClick={onHelp}>
            {w().shortcuts}
          </button>
        </span>
        <span class="line">
          {session.open ? w().open : w().as(session.user_id, session.role)}
          {!session.open && (
            <button type="button" class="link" onClick={() => void signOut()}>
              {w().signOut}
            </button>
          )}
        </span>
      </footer>
    </nav>
  )
}

function AlertBadge() {
  const { data } = useRead<{ data: unknown[] }>('/v1/alerts?limit=100', CALM_MS)
  const count = data?.data.length ?? 0
  return count === 0 ? null : <span class="badge">{w().openAlerts(count)}</span>
}

function Live() {
  const state = !connection.value.online ? 'off' : paused.value ? 'paused' : 'on'
  const text = { off: w().offline, paused: w().paused, on: w().live }[state]
  return (
    <span class="live" role="status" data-live={state}>
      {text}
    </span>
  )
}

function Offline() {
  const { online, lastAnswerMs } = connection.value
  if (online) return null
  return (
    <p class="trouble" role="alert">
      {lastAnswerMs === null ? w().offlineNever : w().offlineSince(formatDuration(nowMs.value - lastAnswerMs, 1))}
    </p>
  )
}
