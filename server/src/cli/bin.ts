import module from 'node:module'
import { nodeTooOld } from '../core/node/node.ts'
import { youngMemory } from './young-memory.ts'

const tooOld = nodeTooOld(process.versions.node)
if (tooOld !== null) {
  process.stderr.write(`${tooOld}.\n`)
  process.exit(1)
}
// Makes every start but the first a third faster.
module.enableCompileCache()
youngMemory.hold()
const [{ main }, { endQuietlyOnClosedPipe }] = await Promise.all([
  import('./program.ts'),
  import('./output/terminal.ts'),
])
youngMemory.release()
endQuietlyOnClosedPipe()
process.exitCode = await main(process.argv.slice(2))
