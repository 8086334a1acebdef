import type { Command } from 'commander'

/** The help of a group shows examples of its first subcommands. */
const SHOWN_OF_GROUP_MAX = 3

const JOB = '01990f3a-7c1e...1d07'
const ID = '01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07'

/** By command. A test parses each of them with the program itself. */
const EXAMPLES: Readonly<Record<string, readonly string[]>> = {
  serve: ['serve --local-worker'],
  worker: [
    "worker --queue default --concurrency 5 --exec './resize.sh'",
    "worker --queue default --drain 10m --exec './resize.sh'",
  ],
  submit: [
    `submit resize --queue media --payload '{"width": 80}' --key thumb-17`,
    'submit report --delay 10m --max-attempts 5 --wait --timeout 1h',
  ],
  watch: [`watch ${JOB} --timeout 10m`],
  'jobs list': ['jobs list --state FAILED,TIMED_OUT --queue media', 'jobs list --waiting-longer-than 10m --watch'],
  'jobs show': [`jobs show ${JOB}`],
  'jobs logs': [`jobs logs ${JOB} --follow --tail 100`],
  'jobs artifacts': [`jobs artifacts ${JOB} --save ./files`],
  'jobs cancel': [`jobs cancel ${JOB}`, 'jobs cancel --all-matching --queue media --dry-run'],
  'jobs retry': [
    `jobs retry ${JOB} --payload '{"width": 40}'`,
    'jobs retry --all-matching --error-code TIMEOUT --per-second 10',
  ],
  'jobs operations': ['jobs operations --limit 10'],
  'jobs progress': [`jobs progress ${ID}`],
  'jobs abort': [`jobs abort ${ID}`],
  events: [`events --job ${JOB}`, 'events --queue media --follow --json'],
  stats: ['stats'],
  system: ['system', 'system --json'],
  'keys list': ['keys list --active'],
  'keys show': ['keys show thumb-17'],
  'keys extend': ['keys extend thumb-17 --ttl-hours 7d'],
  'queues list': ['queues list'],
  'queues show': ['queues show media'],
  'queues pause': ['queues pause media'],
  'queues resume': ['queues resume media'],
  'queues set': ['queues set media --max-concurrent 4 --lease-ttl 2m', 'queues set media --max-concurrent none'],
  'quota list': ['quota list'],
  'quota show': ['quota show alice'],
  'quota set': ['quota set alice --max-concurrent 10', "quota set '*' --max-concurrent 100"],
  'quota clear': ['quota clear alice'],
  'quota reservations': ['quota reservations --user alice --active'],
  'dead list': ['dead list --group', 'dead list --queue media --since 2026-11-15T00:00:00Z'],
  'dead show': [`dead show ${JOB}`],
  'dead redrive': [`dead redrive ${JOB}`, 'dead redrive --all-matching --error-code TIMEOUT --dry-run'],
  'dead redrives': ['dead redrives'],
  'dead progress': [`dead progress ${ID}`],
  'dead abort': [`dead abort ${ID}`],
  'definitions list': ['definitions list'],
  'definitions show': ['definitions show nightly'],
  'definitions create': [`definitions create nightly --kind report --cron '0 3 * * *' --time-zone Europe/Berlin`],
  'definitions update': [`definitions update nightly --cron '30 3 * * *'`],
  'definitions delete': ['definitions delete nightly'],
  'definitions pause': ['definitions pause nightly'],
  'definitions resume': ['definitions resume nightly'],
  'definitions run': ['definitions run nightly --wait'],
  'definitions backfill': [
    'definitions backfill nightly --from 2026-11-01T00:00:00Z --to 2026-11-08T00:00:00Z --dry-run',
  ],
  'definitions backfills': ['definitions backfills nightly'],
  'definitions progress': [`definitions progress nightly ${ID}`],
  'definitions abort': [`definitions abort nightly ${ID}`],
  'definitions ticks': ['definitions ticks nightly --limit 5'],
  'definitions occurrences': ['definitions occurrences nightly --from 2026-11-01T00:00:00Z'],
  'definitions preview': [`definitions preview '0 3 * * *' --time-zone Asia/Tokyo`],
  'alerts list': ['alerts list --open'],
  'triggers send': [`triggers send orders --data '{"id": 17}' --dedupe-key order-17`],
  'triggers list': ['triggers list --topic orders'],
  'triggers show': [`triggers show ${ID}`],
  'hooks list': ['hooks list'],
  'hooks show': ['hooks show github'],
  'hooks put': ['hooks put github --topic push --scheme github --secret -'],
  'hooks delete': ['hooks delete github'],
  'webhooks list': ['webhooks list'],
  'webhooks show': [`webhooks show ${ID}`],
  'webhooks create': ['webhooks create https://example.com/ichido --queue media'],
  'webhooks update': [`webhooks update ${ID} --disable`],
  'webhooks rotate': [`webhooks rotate ${ID}`],
  'webhooks test': [`webhooks test ${ID}`],
  'webhooks deliveries': [`webhooks deliveries ${ID} --limit 10`],
  'webhooks redrive': [`webhooks redrive ${ID}`],
  'webhooks delete': [`webhooks delete ${ID}`],
  'callbacks list': ['callbacks list --state dead'],
  'callbacks redrive': [`callbacks redrive ${JOB}`, 'callbacks redrive'],
  'callbacks secret': ['callbacks secret'],
  'callbacks rotate': ['callbacks rotate', 'callbacks rotate --user alice'],
  'workers list': ['workers list'],
  'workers show': ['workers show lab-pc'],
  'workers enroll': ['workers enroll lab-pc --queue zpe'],
  'workers drain': ['workers drain lab-pc --wait'],
  'workers resume': ['workers resume lab-pc'],
  'workers revoke': ['workers revoke lab-pc'],
  'token create': ['token create --user alice --role submitter --ttl-days 30d'],
  'token list': ['token list'],
  'token revoke': [`token revoke ${ID}`],
  'settings list': ['settings list'],
  'settings show': ['settings show job_retention_seconds'],
  'settings set': ['settings set job_retention_seconds 2592000'],
  'settings reset': ['settings reset job_retention_seconds'],
  'audit list': ['audit list --action job.cancel --from 2026-11-01T00:00:00Z'],
  'outbox list': ['outbox list'],
  'outbox flush': ['outbox flush'],
  'outbox drop': [`outbox drop ${ID}`],
  migrate: ['migrate'],
  backup: ['backup jobs.backup', 'backup jobs.backup --verify'],
  doctor: ['doctor'],
  demo: ['demo'],
  completion: ['completion bash', 'completion zsh', 'completion fish'],
}

/** Adds the examples to the help of each command. */
export function addExamples(command: Command, path = ''): void {
  for (const inner of command.commands) {
    const name = path === '' ? inner.name() : `${path} ${inner.name()}`
    const lines = examplesOf(name)
    if (lines.length > 0)
      inner.addHelpText('after', `\nExamples:\n${lines.map((line) => `  ichido ${line}`).join('\n')}`)
    addExamples(inner, name)
  }
}

function examplesOf(name: string): readonly string[] {
  const own = EXAMPLES[name]
  if (own !== undefined) return own
  const inner = Object.entries(EXAMPLES).filter(([path]) => path.startsWith(`${name} `))
  return inner.flatMap(([, [first]]) => first ?? []).slice(0, SHOWN_OF_GROUP_MAX)
}
