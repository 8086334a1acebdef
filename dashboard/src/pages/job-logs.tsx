import type { RunLogShape } from '@ichido/sdk/protocol'
import { useEffect, useRef, useState } from 'preact/hooks'
import { BASE_URL } from '../server/call.ts'
import { formatInstant, words } from '../words.ts'

const w = words(
  {
    title: 'Log',
    none: 'Nothing was written yet.',
    noneEnded: 'The job wrote nothing.',
    search: 'Search in the log',
    follow: 'Follow',
    download: 'Download',
    shown: (n: number) => `The page shows the last ${n} lines. The download has all of them.`,
    unmatched: 'No line matches.',
    run: (no: number) => `Run ${no}`,
  },
  {
    title: 'ログ',
    none: 'まだ何も出力されていません。',
    noneEnded: '出力はありませんでした。',
    search: 'ログ内を検索',
    follow: '追従',
    download: 'ダウンロード',
    shown: (n) => `直近 ${n} 行を表示しています。全体はダウンロードできます。`,
    unmatched: '一致する行はありません。',
    run: (no) => `実行 ${no}`,
  },
)

const LINES_MAX = 1_000
const DRAW_MS = 100

interface Line {
  n: number
  stream: RunLogShape['stream']
  text: string
  runNo: number
  at: string
}

/** The last lines of a log. A line may come in several pieces. */
class Tail {
  #lines: Line[] = []
  #next = 0
  #open = false
  dropped = false

  add({ stream, text, run_no: runNo, created_at: at }: RunLogShape): void {
    const pieces = text.split('\n')
    for (const [i, piece] of pieces.entries()) {
      const last = this.#lines.at(-1)
      const continues = this.#open && last?.stream === stream && last.runNo === runNo
      if (i === 0 && continues) last.text += piece
      else if (i < pieces.length - 1 || piece !== '')
        this.#lines.push({ n: this.#next++, stream, text: piece, runNo, at })
    }
    this.#open = !text.endsWith('\n')
    if (this.#lines.length <= LINES_MAX) return
    this.#lines = this.#lines.slice(-LINES_MAX)
    this.dropped = true
  }

  get lines(): Line[] {
    return [...this.#lines]
  }
}

function useLog(jobId: string): { lines: Line[]; dropped: boolean } {
  const [shown, show] = useState<{ lines: Line[]; dropped: boolean }>({ lines: [], dropped: false })
  useEffect(() => {
    const tail = new Tail()
    const source = new EventSource(`${BASE_URL}/v1/jobs/${jobId}/logs?tail=${LINES_MAX}`)
    let drawing: ReturnType<typeof setTimeout> | undefined
    source.addEventListener('log', ({ data }: MessageEvent<string>) => {
      tail.add(JSON.parse(data) as RunLogShape)
      drawing ??= setTimeout(() => {
        drawing = undefined
        show({ lines: tail.lines, dropped: tail.dropped })
      }, DRAW_MS)
    })
    source.addEventListener('end', () => source.close())
    return () => {
      source.close()
      clearTimeout(drawing)
    }
  }, [jobId])
  return shown
}

export function Logs({ jobId, ended }: { jobId: string; ended: boolean }) {
  const { lines, dropped } = useLog(jobId)
  const [search, setSearch] = useState('')
  const [follows, setFollows] = useState(true)
  const box = useRef<HTMLDivElement>(null)
  const wanted = search === '' ? lines : lines.filter(({ text }) => text.toLowerCase().includes(search.toLowerCase()))
  useEffect(() => {
    if (follows && box.current !== null) box.current.scrollTop = box.current.scrollHeight
  })
  return (
    <section class="card pad" aria-label={w().title}>
      <div class="line">
        <h3>{w().title}</h3>
        {lines.length > 0 && (
          <>
            <input
              type="search"
              aria-label={w().search}
              placeholder={w().search}
              value={search}
              onInput={(event) => setSearch(event.currentTarget.value)}
            />
            <label class="line">
              <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} />
              {w().follow}
            </label>
            <button type="button" class="quiet" onClick={() => void download(jobId)}>
              {w().download}
            </button>
          </>
        )}
      </div>
      {lines.length === 0 ? (
        <p class="faint">{ended ? w().noneEnded : w().none}</p>
      ) : (
        // biome-ignore lint/a11y/noNoninteractiveTabindex: a long log is scrolled with the arrow keys
        <div class="scroll log" ref={box} tabIndex={0} role="log" aria-label={w().title} aria-live="off">
          {wanted.length === 0 ? (
            <p>{w().unmatched}</p>
          ) : (
            wanted.map(({ n, stream, text, runNo, at }, i) => (
              <div key={n} data-stream={stream} title={formatInstant(at)}>
                {runNo !== (wanted[i - 1]?.runNo ?? 1) && <b class="run">{w().run(runNo)}</b>}
                {text}
              </div>
            ))
          )}
        </div>
      )}
      {dropped && <p class="note">{w().shown(LINES_MAX)}</p>}
    </section>
  )
}

/** The text form of the log has no address of its own: the header `Accept` chooses it. */
async function download(jobId: string): Promise<void> {
  const answer = await fetch(`${BASE_URL}/v1/jobs/${jobId}/logs`, { headers: { accept: 'text/plain' } })
  const url = URL.createObjectURL(await answer.blob())
  const link = document.createElement('a')
  link.href = url
  link.download = `${jobId}.log`
  link.click()
  URL.revokeObjectURL(url)
}
