import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { AxeResults } from 'axe-core'
import type { Page } from 'playwright-core'
import type { Stage } from './stage.ts'

const AXE = createRequire(import.meta.url).resolve('axe-core')

/** The page's policy allows no inline code, so the checker runs in a world of its own. */
export async function findSerious(page: Page): Promise<string[]> {
  const session = await page.context().newCDPSession(page)
  const { frameTree } = await session.send('Page.getFrameTree')
  const { executionContextId } = await session.send('Page.createIsolatedWorld', { frameId: frameTree.frame.id })
  const run = async (expression: string) =>
    (
      await session.send('Runtime.evaluate', {
        expression,
        contextId: executionContextId,
        awaitPromise: true,
        returnByValue: true,
      })
    ).result.value as unknown
  await run(readFileSync(AXE, 'utf8'))
  const { violations } = (await run('axe.run()')) as AxeResults
  await session.detach()
  return violations
    .filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) => nodes.map(({ html, failureSummary }) => `${id}: ${html} ${failureSummary ?? ''}`))
}

/** Signs in with a token, so that the page has the abilities of its role. */
export async function signIn({ page, url }: Stage, token: string): Promise<void> {
  await page.goto(`${url}/jobs`)
  await page.getByLabel('API token').fill(token)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('navigation').waitFor()
}
