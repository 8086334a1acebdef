import { order, type Reply, settings } from './contestant.ts'
import { host } from './host.ts'

// A contestant in its own process. It executes the orders that its parent sends over the channel.

const say = (reply: Reply) => process.send?.(reply)
const failure = (error: unknown): Reply => ({
  failed: error instanceof Error ? (error.stack ?? error.message) : String(error),
})

try {
  const hosted = await host(settings.parse(JSON.parse(process.argv[2] ?? '')), say)
  process.on('message', (message) => hosted.carryOut(order.parse(message)).then(say, (error) => say(failure(error))))
  process.on('disconnect', () => void hosted.close().finally(() => process.exit()))
  say({ done: true })
} catch (error) {
  say(failure(error))
  process.disconnect()
}
