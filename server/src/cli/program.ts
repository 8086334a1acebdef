import { Command } from 'commander'
import { addDead } from './commands/jobs/dead.ts'
import { addDemo } from './commands/jobs/demo.ts'
import { addJobs } from './commands/jobs/jobs.ts'
import { addKeys } from './commands/jobs/keys.ts'
import { addOutbox } from './commands/jobs/outbox.ts'
import { addSubmit } from './commands/jobs/submit.ts'
import { addWatch } from './commands/jobs/watch.ts'
import { addAlerts } from './commands/operate/alerts.ts'
import { addBackup } from './commands/operate/backup.ts'
import { addMigrate } from './commands/operate/migrate.ts'
import { addQueues } from './commands/operate/queues.ts'
import { addQuota } from './commands/operate/quota.ts'
import { addServe } from './commands/operate/serve.ts'
import { addToken } from './commands/operate/token.ts'
import { addWorker } from './commands/operate/worker.ts'
import { addWorkers } from './commands/operate/workers.ts'
import { addDefinitions } from './commands/schedules/definitions.ts'
import { addHooks } from './commands/schedules/hooks.ts'
import { addTriggers } from './commands/schedules/triggers.ts'
import { addDoctor } from './doctor/doctor.ts'
import { EXIT, type ExitCode } from './output/exit.ts'
import { report } from './output/report.ts'
import { outText, sayText } from './output/terminal.ts'
import { commandLine, VERSION } from './self.ts'
import { addUnknownCommands } from './unknown-commands.ts'

/** Runs one command line and answers with how the process should end. */
export async function main(argv: readonly string[]): Promise<ExitCode> {
  try {
    await createProgram().parseAsync(argv, { from: 'user' })
    return EXIT.done
  } catch (error) {
    return report(error)
  }
}

/** All commands with all their flags. */
export function createProgram(): Command {
  const program = new Command('ichido')
    .description(
      'A job control plane that accepts a job once, gives it to one worker at a time, and accepts one outcome',
    )
    .version(VERSION, '-V, --version')
    .addHelpText('after', ABOUT)
    .exitOverride()
    .configureOutput({ writeOut: outText, writeErr: sayText })
  const commands = [
    addServe,
    addWorker,
    addSubmit,
    addWatch,
    addJobs,
    addKeys,
    addQueues,
    addQuota,
    addDead,
    addDefinitions,
    addAlerts,
    addTriggers,
    addHooks,
  ]
  for (const add of [
    ...commands,
    addWorkers,
    addToken,
    addOutbox,
    addMigrate,
    addBackup,
    addDoctor,
    addDemo,
    addUnknownCommands,
  ])
    add(program)
  pointToHelp(program, '')
  return program
}

/** Wrong arguments lead to the help of the command that they were meant for. */
function pointToHelp(command: Command, path: string): void {
  command.showHelpAfterError(`See \`${commandLine(`${path}--help`)}\``)
  for (const inner of command.commands) pointToHelp(inner, `${path}${inner.name()} `)
}

const ABOUT = `
serve, migrate, backup, doctor and token create work on the store that DATA_DIR or DATABASE_URL names.
All others talk to the server at ICHIDO_URL (default http://127.0.0.1:8001), with ICHIDO_TOKEN.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 timeout.`
