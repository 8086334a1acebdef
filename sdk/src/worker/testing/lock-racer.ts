import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { lockState } from '../agent/identity/lock.ts'

/** Told when to begin, it takes lock after lock, each at an instant that others were told as well; keeps what it got. */
const [folder = '', rounds = '0', everyMs = '0'] = process.argv.slice(2)

process.stdout.write('ready\n')
for await (const line of createInterface(process.stdin)) {
  const won: number[] = []
  for (let round = 0; round < Number(rounds); round++) {
    const atMs = Number(line) + round * Number(everyMs)
    while (Date.now() < atMs);
    try {
      lockState(join(folder, String(round), 'lock'))
      won.push(round)
    } catch (error) {
      if (!(error instanceof Error) || error.name !== 'StateTaken') throw error
    }
  }
  process.stdout.write(`${JSON.stringify(won)}\n`)
}
