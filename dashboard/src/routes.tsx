import type { ComponentType } from 'preact'
import { useEffect, useState } from 'preact/hooks'
import type { Ability } from './server/session.ts'
import { words } from './words.ts'

export const pageWords = words(
  {
    overview: 'Overview',
    jobs: 'Jobs',
    queues: 'Queues',
    workers: 'Workers',
    schedules: 'Schedules',
    deadLetters: 'Dead letters',
    users: 'Users and quotas',
    keys: 'Keys',
    tokens: 'Tokens',
    audit: 'Audit',
    settings: 'Settings',
    alerts: 'Alerts',
    system: 'System',
    webhooks: 'Webhooks',
    work: 'Work',
    access: 'Access',
    operation: 'Operation',
  },
  {
    overview: '概要',
    jobs: 'ジョブ',
    queues: 'キュー',
    workers: 'ワーカー',
    schedules: 'スケジュール',
    deadLetters: 'デッドレター',
    users: 'ユーザーと上限',
    keys: 'キー',
    tokens: 'トークン',
    audit: '監査',
    settings: '設定',
    alerts: 'アラート',
    system: 'システム',
    webhooks: 'Webhook',
    work: '作業',
    access: 'アクセス',
    operation: '運用',
  },
)

type WordName = keyof ReturnType<typeof pageWords>

interface PageLink {
  path: string
  word: WordName
  needs: Ability
}

/** The pages in the navigation. A visitor without the ability does not see the link. */
export const NAVIGATION: { word: WordName; links: PageLink[] }[] = [
  {
    word: 'work',
    links: [
      { path: '/', word: 'overview', needs: 'readAll' },
      { path: '/jobs', word: 'jobs', needs: 'readOwn' },
      { path: '/queues', word: 'queues', needs: 'readAll' },
      { path: '/workers', word: 'workers', needs: 'readAll' },
      { path: '/schedules', word: 'schedules', needs: 'readAll' },
      { path: '/dead-letters', word: 'deadLetters', needs: 'readOwn' },
    ],
  },
  {
    word: 'access',
    links: [
      { path: '/users', word: 'users', needs: 'readAll' },
      { path: '/keys', word: 'keys', needs: 'readOwn' },
      { path: '/tokens', word: 'tokens', needs: 'administer' },
      { path: '/audit', word: 'audit', needs: 'operate' },
    ],
  },
  {
    word: 'operation',
    links: [
      { path: '/alerts', word: 'alerts', needs: 'readAll' },
      { path: '/webhooks', word: 'webhooks', needs: 'readAll' },
      { path: '/settings', word: 'settings', needs: 'readAll' },
      { path: '/system', word: 'system', needs: 'readAll' },
    ],
  },
]

/** The code of each page is loaded when the page is first opened. */
export const PAGES = [
  { path: '/', load: () => import('./pages/overview.tsx') },
  { path: '/jobs', load: () => import('./pages/jobs.tsx') },
  { path: '/jobs/:id', load: () => import('./pages/job.tsx') },
  { path: '/queues', load: () => import('./pages/queues.tsx') },
  { path: '/workers', load: () => import('./pages/workers.tsx') },
  { path: '/schedules', load: () => import('./pages/schedules.tsx') },
  { path: '/schedules/:name', load: () => import('./pages/schedule.tsx') },
  { path: '/dead-letters', load: () => import('./pages/dead-letters.tsx') },
  { path: '/users', load: () => import('./pages/users.tsx') },
  { path: '/keys', load: () => import('./pages/keys.tsx') },
  { path: '/tokens', load: () => import('./pages/tokens.tsx') },
  { path: '/audit', load: () => import('./pages/audit.tsx') },
  { path: '/alerts', load: () => import('./pages/alerts.tsx') },
  { path: '/webhooks', load: () => import('./pages/webhooks.tsx') },
  { path: '/webhooks/:id', load: () => import('./pages/webhook.tsx') },
  { path: '/settings', load: () => import('./pages/settings.tsx') },
  { path: '/system', load: () => import('./pages/system.tsx') },
].map(({ path, load }) => ({ path, Page: lazy(load) }))

type PageProps = { params: Record<string, string | undefined> }

function lazy(load: () => Promise<{ default: ComponentType<PageProps> }>) {
  let Loaded: ComponentType<PageProps> | null = null
  return function Lazy(props: PageProps) {
    const [, draw] = useState(0)
    useEffect(() => {
      if (Loaded !== null) return
      load().then(
        (page) => {
          Loaded = page.default
          draw(1)
        },
        // The server was upgraded, and the files of the old page are gone.
        () => location.reload(),
      )
    }, [])
    return Loaded === null ? null : <Loaded {...props} />
  }
}
