import type { Stage } from './stage.ts'

/** Signs in with a token, so that the page has the abilities of its role. */
export async function signIn({ page, url }: Stage, token: string, path = '/jobs'): Promise<void> {
  await page.goto(`${url}${path}`)
  await page.getByLabel('API token').fill(token)
  await page.getByRole('button', { name: 'Sign in' }).click()
}
