import type { SystemShape } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { connect } from '../../connection/connect.ts'
import type { JsonFlag } from '../../flags.ts'
import { instant, printFacts } from '../../output/print.ts'

export function addSystem(program: Command): void {
  program
    .command('system')
    .description('show the node that answers, its store, and the leader')
    .option('--json', 'print JSON')
    .action(print)
}

async function print({ json }: JsonFlag): Promise<void> {
  const system = await connect().ask<SystemShape>('GET', '/v1/system')
  const { node, leader, loops, store, redis, disks } = system
  const late = loops.filter((loop) => loop.late).map(({ name }) => name)
  const leads = leader.this_node ? 'this node' : leader.present ? 'another node' : 'none'
  printFacts(system, json, [
    ['version', `${node.version}, Node ${node.node_version}`],
    ['started', instant(node.started_at)],
    ['leader', `${leads}, epoch ${leader.epoch}`],
    ['store', `${store.engine} ${store.engine_version}, schema ${store.schema_version}: ${store.location}`],
    ['durable', store.durable ? 'yes' : 'no'],
    ['clock', `the store's clock differs by ${store.clock_skew_ms} ms`],
    ['redis', redis ?? 'none'],
    ['disks', disks.map(({ folder, free_percent }) => `${folder}: ${free_percent} % free`).join(', ') || 'none'],
    ['late loops', late.join(', ') || 'none'],
  ])
}
