import { Command } from 'commander'
import { addAlerts } from './alerts.ts'
import { addBackup } from './backup.ts'
import { addDead } from './dead.ts'
import { addDefinitions } from './definitions.ts'
import { addDemo } from './demo.ts'
import { addDoctor } from './doctor.ts'
import { addElsewhere } from './elsewhere.ts'
import { EXIT, type ExitCode } from './exit.ts'
import { addHooks } from './hooks.ts'
import { addJobs } from './jobs.ts'
import { addKeys } from './keys.ts'
import { addMigrate } from './migrate.ts'
import { addOutbox } from './outbox.ts'
import { addQueues } from './queues.ts'
import { addQuota } from './quota.ts'
import { report } from './report.ts'
import { commandLine, VERSION } from './self.ts'
import { addServe } from './serve.ts'
import { addSubmit } from './submit.ts'
import { outText, sayText } from './terminal.ts'
import { addToken } from './token.ts'
import { addTriggers } from './triggers.ts'
import { addWatch } from './watch.ts'
import { addWorker } from './worker.ts'
import { addWorkers } from './workers.ts'

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
    .description('A job control plane: a job is accepted once, held by one worker at a time, its outcome accepted once')
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
    addElsewhere,
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
