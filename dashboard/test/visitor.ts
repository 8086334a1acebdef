import type { Stage } from './stage.ts'

/** Signs in with a token, so that the page has the abilities of its role. */
export async function signIn({ page, url }: Stage, token: string): Promise<void> {
  await page.goto(`${url}/jobs`)
  await page.getByLabel('API token').fill(token)
  await page.getByRole('button', { name: 'Sign in' }).click()
  await page.getByRole('navigation').waitFor()
}
