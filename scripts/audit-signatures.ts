// `npm run audit:signatures`: asks the registry whether it signed each installed package.
import { root } from './boot/fetch-packages.mjs'
import { runNpm } from './boot/npm.mjs'
import { Trouble } from './boot/trouble.mjs'

try {
  await runNpm(['audit', 'signatures'], root)
  console.log('The registry has signed all packages of package-lock.json.')
} catch (error) {
  if (!(error instanceof Trouble)) throw error
  console.error(error.message)
  process.exitCode = 1
}
