import type { RedriveShape } from '@ichido/sdk/protocol'
import type { Connection } from '../../connection/connect.ts'
import { followProgress } from '../../output/progress.ts'
import { commandLine } from '../../self.ts'

/** Shows how a redrive goes until it has ended. Whoever stops looking leaves it running. */
export function followRedrive(connection: Connection, redriveId: string): Promise<RedriveShape> {
  return followProgress({
    look: () => connection.ask<RedriveShape>('GET', `/v1/dead-letters/redrives/${redriveId}`),
    hasEnded: ({ state }) => state !== 'running',
    tell: tellRedrive,
    goesOn: { message: `Redrive ${redriveId} continues without this command.`, advice: howToGoOn(redriveId) },
  })
}

function howToGoOn(redriveId: string): string {
  const lines = [`  ${commandLine(`dead progress ${redriveId}`)}`, `  ${commandLine(`dead abort ${redriveId}`)}`]
  return ['See it with', lines[0], 'or end it with', lines[1]].join('\n')
}

export function tellRedrive({ matched, redriven, waiting, skipped }: RedriveShape): string {
  const parts = [`${redriven} of ${matched} redriven`]
  if (waiting > 0) parts.push(`${waiting} wait for a quota`)
  if (skipped > 0) parts.push(`${skipped} skipped`)
  return parts.join(', ')
}
