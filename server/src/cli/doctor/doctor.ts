import type { Command } from 'commander'
import { EXIT, Failure } from '../output/exit.ts'
import { outJson, paint, say } from '../output/terminal.ts'

export function addDoctor(program: Command): void {
  program
    .command('doctor')
    .description('check settings, store, schema, durability, clock, disk and server, and suggest fixes')
    .option('--json', 'print JSON')
    .action(doctor)
}

const MARKS = { ok: paint('green', '✓'), warning: paint('yellow', '!'), broken: paint('red', '✗'), unchecked: '–' }

async function doctor({ json }: { json?: boolean }): Promise<void> {
  const { examine } = await import('./examine.ts')
  const findings = await examine()
  const broken = findings.filter((finding) => finding.status === 'broken').length
  if (json) outJson({ ok: broken === 0, checks: findings })
  else {
    for (const { status, check, message, advice } of findings) {
      say(`${MARKS[status]} ${check.padEnd(10)} ${message}`)
      if (advice !== undefined) say(`${' '.repeat(13)}${advice}`)
    }
  }
  if (broken > 0)
    throw new Failure(broken === 1 ? 'One check failed.' : `${broken} checks failed.`, undefined, EXIT.failed)
}
