import { createInterface } from 'node:readline'
import { platformWorld } from '../../world.ts'
import { FileStore, fileFlushLock, nodeNetwork } from '../node/file-outbox.ts'
import { Outbox } from '../outbox.ts'

/** Does to an outbox file what it is told, line by line: `flush`, or `put PREFIX` without end, each key acknowledged. */
const [path = '', url = ''] = process.argv.slice(2)
const say = (line: string) => process.stdout.write(`${line}\n`)

const outbox = new Outbox({
  store: new FileStore({ path, world: platformWorld, warn: (message) => say(`warning ${message}`) }),
  lock: fileFlushLock(path, platformWorld),
  network: nodeNetwork,
  world: platformWorld,
  send: ({ key }, signal) => fetch(url, { method: 'POST', body: key, signal }),
})

say('ready')
for await (const line of createInterface(process.stdin)) {
  const [command, prefix] = line.split(' ')
  if (command === 'flush') {
    await outbox.flush()
    say('flushed')
  }
  for (let n = 0; command === 'put'; n++) {
    const { key } = await outbox.put({ n }, { key: `${prefix}-${n}` })
    say(key)
  }
}
