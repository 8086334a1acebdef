import type { ArtifactShape } from '@ichido/sdk/protocol'
import { useQuery } from '@tanstack/preact-query'
import { useState } from 'preact/hooks'
import { Loaded } from '../parts/loaded.tsx'
import { Json } from '../parts/text.tsx'
import { BASE_URL } from '../server/call.ts'
import { LIVE_MS, useRead } from '../server/queries.ts'
import { formatBytes, formatNumber, words } from '../words.ts'
import { rowsOf } from './job-files-csv.ts'

const w = words(
  {
    title: 'Files',
    name: 'Name',
    from: 'From',
    input: 'input',
    output: 'output',
    size: 'Size',
    awaited: 'not uploaded yet',
    download: 'Download',
    show: 'Show',
    hide: 'Hide',
    image: (name: string) => `The image ${name}`,
    tooLarge: (size: string) => `The page shows the first ${size}.`,
    rows: (shown: string, all: string) => `The page shows the first ${shown} of ${all} rows.`,
  },
  {
    title: 'ファイル',
    name: '名前',
    from: '種類',
    input: '入力',
    output: '出力',
    size: 'サイズ',
    awaited: '未アップロード',
    download: 'ダウンロード',
    show: '表示',
    hide: '隠す',
    image: (name) => `画像 ${name}`,
    tooLarge: (size) => `最初の ${size} を表示しています。`,
    rows: (shown, all) => `全 ${all} 行のうち最初の ${shown} 行を表示しています。`,
  },
)

/** SVG is not shown: as a document it may contain scripts. */
const IMAGES: Record<string, string> = {
  png: 'image/png',
  jpg: 'image/jpeg',
  jpeg: 'image/jpeg',
  gif: 'image/gif',
  webp: 'image/webp',
}
const TEXTS = ['txt', 'log', 'csv', 'tsv', 'json', 'md', 'yaml', 'yml', 'in', 'out', 'xml']
/** Files that are tables, with the character between their cells. */
const SEPARATORS: Record<string, string> = { csv: ',', tsv: '\t' }
const TEXT_BYTES_MAX = 64 * 1024
const ROWS_MAX = 200
const IMAGE_BYTES_MAX = 8 * 1024 * 1024

const extensionOf = (name: string): string => /\.(\w+)$/.exec(name)?.[1]?.toLowerCase() ?? ''

export function Files({ jobId, ended }: { jobId: string; ended: boolean }) {
  const found = useRead<{ data: ArtifactShape[] }>(`/v1/jobs/${jobId}/artifacts`, ended ? false : LIVE_MS)
  const [shown, show] = useState<string | null>(null)
  // A server without artifacts refuses the call, and then there is nothing to show.
  if (found.data === undefined || found.data.data.length === 0) return null
  return (
    <section class="card list" aria-label={w().title}>
      <table>
        <caption class="unseen">{w().title}</caption>
        <thead>
          <tr>
            <th scope="col">{w().name}</th>
            <th scope="col">{w().from}</th>
            <th scope="col" class="number">
              {w().size}
            </th>
            <th scope="col">
              <span class="unseen">{w().download}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {found.data.data.map((file) => (
            <tr key={file.artifact_id}>
              <td>{file.name}</td>
              <td>{file.run_id === null ? w().input : w().output}</td>
              <td class="number">{file.size_bytes === null ? '–' : formatBytes(file.size_bytes)}</td>
              <td>
                {file.state === 'awaited' ? (
                  w().awaited
                ) : (
                  <span class="line">
                    <a class="quiet" href={`${BASE_URL}/v1/artifacts/${file.artifact_id}`}>
                      {w().download}
                    </a>
                    {isShowable(file) && (
                      <button
                        type="button"
                        class="quiet"
                        aria-expanded={shown === file.artifact_id}
                        onClick={() => show(shown === file.artifact_id ? null : file.artifact_id)}
                      >
                        {shown === file.artifact_id ? w().hide : w().show}
                      </button>
                    )}
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {found.data.data
        .filter(({ artifact_id }) => artifact_id === shown)
        .map((file) => (
          <div key={file.artifact_id} class="pad">
            <Content file={file} />
          </div>
        ))}
    </section>
  )
}

function isShowable({ name, size_bytes }: ArtifactShape): boolean {
  const extension = extensionOf(name)
  return extension in IMAGES ? (size_bytes ?? 0) <= IMAGE_BYTES_MAX : TEXTS.includes(extension)
}

function Content({ file }: { file: ArtifactShape }) {
  const type = IMAGES[extensionOf(file.name)]
  return type === undefined ? <Text file={file} /> : <Picture file={file} type={type} />
}

function Text({ file: { artifact_id, name, size_bytes } }: { file: ArtifactShape }) {
  const found = useQuery({
    queryKey: ['artifact', artifact_id],
    queryFn: async ({ signal }) => (await fetchBytes(artifact_id, TEXT_BYTES_MAX, signal)).text(),
    staleTime: Number.POSITIVE_INFINITY,
  })
  return (
    <Loaded of={found}>
      {(text) => (
        <>
          {extensionOf(name) in SEPARATORS ? (
            <Sheet text={text} name={name} />
          ) : (
            <Json value={extensionOf(name) === 'json' ? pretty(text) : text} name={name} />
          )}
          {(size_bytes ?? 0) > TEXT_BYTES_MAX && <p class="note">{w().tooLarge(formatBytes(TEXT_BYTES_MAX))}</p>}
        </>
      )}
    </Loaded>
  )
}

/** The first row of a table has the names of the columns. */
function Sheet({ text, name }: { text: string; name: string }) {
  const [head = [], ...rows] = rowsOf(text, SEPARATORS[extensionOf(name)] ?? ',')
  const shown = rows.slice(0, ROWS_MAX)
  return (
    <>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a long table is scrolled with the arrow keys */}
      <section class="scroll" tabIndex={0} aria-label={name}>
        <table>
          <caption class="unseen">{name}</caption>
          <thead>
            <tr>
              {head.map((cell, i) => (
                <th key={i} scope="col" class={isNumeric(shown[0]?.[i]) ? 'number' : ''}>
                  {cell}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {shown.map((row, n) => (
              <tr key={n}>
                {row.map((cell, i) => (
                  <td key={i} class={isNumeric(cell) ? 'number' : ''}>
                    {cell}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </section>
      {rows.length > ROWS_MAX && <p class="note">{w().rows(formatNumber(ROWS_MAX), formatNumber(rows.length))}</p>}
    </>
  )
}

const isNumeric = (cell = ''): boolean => cell.trim() !== '' && Number.isFinite(Number(cell))

/** The bytes are read into an address of this page, because the server sends every artifact as a download. */
function Picture({ file: { artifact_id, name }, type }: { file: ArtifactShape; type: string }) {
  const found = useQuery({
    queryKey: ['artifact', artifact_id],
    queryFn: async ({ signal }) => {
      const answer = await fetchBytes(artifact_id, IMAGE_BYTES_MAX, signal)
      return URL.createObjectURL(new Blob([await answer.arrayBuffer()], { type }))
    },
    staleTime: Number.POSITIVE_INFINITY,
  })
  return <Loaded of={found}>{(url) => <img class="picture" src={url} alt={w().image(name)} />}</Loaded>
}

async function fetchBytes(artifactId: string, bytesMax: number, signal: AbortSignal): Promise<Response> {
  const answer = await fetch(`${BASE_URL}/v1/artifacts/${artifactId}`, {
    headers: { range: `bytes=0-${bytesMax - 1}` },
    signal,
  })
  if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`)
  return answer
}

function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2)
  } catch {
    return text
  }
}
