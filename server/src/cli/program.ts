import { Command } from 'commander'
import { addCompletion } from './commands/completion.ts'
import { addDead } from './commands/jobs/dead.ts'
import { addDemo } from './commands/jobs/demo.ts'
import { addEvents } from './commands/jobs/events.ts'
import { addJobs, addWatch } from './commands/jobs/jobs.ts'
import { addKeys } from './commands/jobs/keys.ts'
import { addOutbox } from './commands/jobs/outbox.ts'
import { addSubmit } from './commands/jobs/submit.ts'
import { addAlerts } from './commands/operate/alerts.ts'
import { addAudit } from './commands/operate/audit.ts'
import { addCallbacks } from './commands/operate/callbacks.ts'
import { addQueues } from './commands/operate/queues.ts'
import { addQuota } from './commands/operate/quota.ts'
import { addServe } from './commands/operate/serve.ts'
import { addSettings } from './commands/operate/settings.ts'
import { addStats } from './commands/operate/stats.ts'
import { addBackup, addMigrate } from './commands/operate/store-commands.ts'
import { addSystem } from './commands/operate/system.ts'
import { addToken } from './commands/operate/token.ts'
import { addWebhooks } from './commands/operate/webhooks.ts'
import { addWorker } from './commands/operate/worker.ts'
import { addWorkers } from './commands/operate/workers.ts'
import { addDefinitions } from './commands/schedules/definitions.ts'
import { addHooks } from './commands/schedules/hooks.ts'
import { addTriggers } from './commands/schedules/triggers.ts'
import { addDoctor } from './doctor/doctor.ts'
import { addExamples } from './examples.ts'
import { EXIT, type ExitCode, Failure, report } from './output/exit.ts'
import { outText, sayText } from './output/terminal.ts'
import { commandLine, VERSION } from './self.ts'

const ABOUT = `
serve, migrate, backup, doctor and token create work on the store that DATA_DIR or DATABASE_URL names.
All others talk to the server at ICHIDO_URL (default http://127.0.0.1:8001), with ICHIDO_TOKEN.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 timeout.`

/** Runs one command line, and returns the exit code. */
export async function main(argv: readonly string[]): Promise<ExitCode> {
  try {
    await createProgram().parseAsync(argv, { from: 'user' })
    return EXIT.done
  } catch (error) {
    return report(error)
  }
}

/** Makes the program with all commands and flags. */
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
    addEvents,
    addStats,
    addSystem,
    addKeys,
    addQueues,
    addQuota,
    addDead,
    addDefinitions,
    addAlerts,
    addTriggers,
    addHooks,
    addWebhooks,
    addCallbacks,
  ]
  for (const add of [
    ...commands,
    addWorkers,
    addToken,
    addSettings,
    addAudit,
    addOutbox,
    addMigrate,
    addBackup,
    addDoctor,
    addDemo,
    addCompletion,
    addSchedules,
  ])
    add(program)
  pointToHelp(program, '')
  addExamples(program)
  return program
}

/** A usage error points to the help of its command. */
function pointToHelp(command: Command, path: string): void {
  command.showHelpAfterError(`See \`${commandLine(`${path}--help`)}\``)
  for (const inner of command.commands) pointToHelp(inner, `${path}${inner.name()} `)
}

/** Schedules are a word of the API that people try as a command. */
function addSchedules(program: Command): void {
  program
    .command('schedules [words...]', { hidden: true })
    .allowUnknownOption()
    .helpOption(false)
    .action(() => {
      const advice = `Schedules belong to definitions: \`${commandLine('definitions --help')}\``
      throw new Failure("unknown command 'schedules'", advice, EXIT.usage)
    })
}
