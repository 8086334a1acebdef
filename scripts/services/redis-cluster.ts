import { createConnection } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { type Redis, startRedis } from './redis.ts'

export type RedisCluster = {
  /** The address of all nodes, with the password. */
  url: string
  nodes: readonly Redis[]
  stop(): Promise<void>
}

const NODES = 3
const SLOTS = 16_384
const READY_WITHIN_MS = 30_000

/** Three masters without replicas, each with a third of the slots. */
export async function startRedisCluster(): Promise<RedisCluster> {
  const password = `cluster-${process.pid}`
  const settings = {
    'cluster-enabled': 'yes',
    'cluster-node-timeout': '2000',
    // The rest of the cluster keeps working when a node is down.
    'cluster-require-full-coverage': 'no',
    requirepass: password,
    masterauth: password,
  }
  const started = await Promise.allSettled(Array.from({ length: NODES }, () => startRedis({ settings })))
  const nodes = started.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
  const stop = async () => {
    await Promise.all(nodes.map((node) => node.stop()))
  }
  try {
    for (const one of started) if (one.status === 'rejected') throw one.reason
    await join(nodes, password)
    return {
      url: `redis+cluster://:${password}@${nodes.map(({ port }) => `127.0.0.1:${port}`).join(',')}`,
      nodes,
      stop,
    }
  } catch (error) {
    await stop()
    throw error
  }
}

async function join(nodes: readonly Redis[], password: string): Promise<void> {
  const ask = (node: Redis, ...command: string[]) => send(node.port, [['AUTH', password], command])
  await Promise.all(
    nodes.map((node, i) =>
      ask(
        node,
        'CLUSTER',
        'ADDSLOTSRANGE',
        String(Math.floor((i * SLOTS) / NODES)),
        String(Math.floor(((i + 1) * SLOTS) / NODES) - 1),
      ),
    ),
  )
  const [first, ...others] = nodes
  if (first === undefined) return
  for (const { port, busPort } of others) {
    await ask(first, 'CLUSTER', 'MEET', '127.0.0.1', String(port), String(busPort))
  }
  const deadlineMs = Date.now() + READY_WITHIN_MS
  for (const node of nodes) {
    for (;;) {
      const found = await ask(node, 'CLUSTER', 'INFO')
      if (/cluster_state:ok/.test(found) && /cluster_slots_ok:16384/.test(found) && /cluster_size:3/.test(found)) break
      if (Date.now() > deadlineMs) throw new Error(`The Redis cluster is not ready after 30 s:\n${found}`)
      await sleep(50)
    }
  }
}

/** Sends commands over a new connection, and returns the raw answer. */
function send(port: number, commands: readonly string[][]): Promise<string> {
  return new Promise((resolve, reject) => {
    let answer = ''
    const socket = createConnection({ host: '127.0.0.1', port })
    socket
      .setEncoding('utf8')
      .on('error', reject)
      .on('data', (text) => {
        answer += text
      })
    socket.on('close', () => {
      const error = /^-.*$/m.exec(answer)
      if (error === null) resolve(answer)
      else reject(new Error(error[0]))
    })
    for (const command of [...commands, ['QUIT']]) {
      const parts = command.map((part) => `$${Buffer.byteLength(part)}\r\n${part}\r\n`)
      socket.write(`*${command.length}\r\n${parts.join('')}`)
    }
  })
}
