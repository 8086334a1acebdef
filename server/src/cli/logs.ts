import type { Page, RunLogShape } from '@ichido/sdk/protocol'
import { connect, query } from './connect.ts'
import { outJson, paint, say } from './terminal.ts'

const PAGE = 200

/** What the runs of a job wrote, oldest first. */
export async function printLogs(jobId: string, { json }: { json?: boolean }): Promise<void> {
  const { ask } = connect()
  const data: RunLogShape[] = []
  let runNo: number | null = null
  let cursor: string | null = null
  do {
    const place: string = query({ limit: PAGE, cursor: cursor ?? undefined })
    const page: Page<RunLogShape> = await ask('GET', `/v1/jobs/${encodeURIComponent(jobId)}/logs${place}`)
    for (const chunk of page.data) {
      if (json) data.push(chunk)
      else {
        if (chunk.run_no !== runNo) say(paint('bold', `run ${chunk.run_no}:`))
        process.stdout.write(withoutControls(chunk.text))
      }
      runNo = chunk.run_no
    }
    cursor = page.next_cursor
  } while (cursor !== null)
  if (json) outJson({ data })
  else if (runNo === null) say('Its runs have written nothing.')
}

/** What others wrote must not move the cursor. */
export function withoutControls(text: string): string {
  return text.replace(/[^\P{Cc}\n\t]/gu, ' ')
}
