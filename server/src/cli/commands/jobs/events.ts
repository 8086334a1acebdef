import type { EventOfAllShape, EventsOfAllShape } from '@ichido/sdk/protocol'
import { lineForTerminal } from '@ichido/sdk/terminal'
import type { Command } from 'commander'
import { isUuid } from '../../../contract/common.ts'
import { type Connection, connect, query } from '../../connection/connect.ts'
import { jobIdOf } from '../../connection/job-id.ts'
import { followStream } from '../../connection/stream.ts'
import { type ListFlags, paged } from '../../flags.ts'
import { EXIT, Failure } from '../../output/exit.ts'
import { eventText } from '../../output/follow.ts'
import { instant, printPage } from '../../output/print.ts'
import { out, outJson } from '../../output/terminal.ts'
import { commandLine } from '../../self.ts'

interface EventFlags extends ListFlags {
  job?: string
  queue?: string
  kind?: string
  domain?: string
  stage?: string
  follow?: boolean
}

type Filter = Readonly<Record<string, string | number | undefined>>

export function addEvents(program: Command): void {
  const events = program
    .command('events')
    .description('list the events of all jobs, oldest first, or follow them')
    .option('--job <job-id>', 'only events of this job')
    .option('--queue <name>', 'only events of jobs in this queue')
    .option('--kind <name>', 'only events of jobs of this kind')
    .option('--domain <name>', 'only events of this domain')
    .option('--stage <name>', 'only events of this stage; `run` has the states of jobs')
    .option('-f, --follow', 'print new events until Ctrl-C; with --json, each is a line')
  paged(events).action(print)
}

async function print({ job, json, follow = false, ...rest }: EventFlags): Promise<void> {
  const connection = connect()
  const jobId = job === undefined ? undefined : await jobIdOf(connection, job)
  if (jobId !== undefined && !isUuid(jobId)) {
    throw new Failure(`${job} is not the id of a job.`, `List them: ${commandLine('jobs list')}`, EXIT.usage)
  }
  const filter = { ...rest, job_id: jobId }
  if (!follow) return printList(await firstPage(connection, filter), json)
  if (rest.limit !== undefined) throw new Failure('--limit goes without --follow.', undefined, EXIT.usage)
  for await (const { data } of followStream(connection, `/v1/events${query(filter)}`)) {
    if (json) outJson(data)
    else out(lineOf(data as EventOfAllShape))
  }
}

/** The server looks at some events at a time, so an answer may be empty although later ones match. */
async function firstPage({ ask }: Connection, filter: Filter): Promise<EventsOfAllShape> {
  let page = await ask<EventsOfAllShape>('GET', `/v1/events${query(filter)}`)
  while (page.data.length === 0 && !page.caught_up) {
    page = await ask<EventsOfAllShape>('GET', `/v1/events${query({ ...filter, cursor: page.next_cursor })}`)
  }
  return page
}

function printList(page: EventsOfAllShape, json: boolean | undefined): void {
  const { data, next_cursor, caught_up } = page
  // In the API this list has no end.
  printPage(json ? page : { data, next_cursor: caught_up ? null : next_cursor }, json, 'No events.', {
    TIME: ({ timestamp }) => instant(timestamp),
    JOB: (event) => event.job_id,
    QUEUE: (event) => event.queue,
    KIND: (event) => event.kind,
    EVENT: eventText,
  })
}

function lineOf(event: EventOfAllShape): string {
  const { timestamp, job_id, queue, kind } = event
  return [instant(timestamp), job_id, queue, kind, eventText(event)].map(lineForTerminal).join('  ')
}
