import { chromium as playwright } from 'playwright-core'
import { expect, test } from 'vitest'
import { chromium } from '../../../../scripts/testing/services.ts'
import { testApp } from '../../testing/http/app.ts'

test('/docs works in a browser, with its policy and without other sites', async () => {
  const http = await testApp('sqlite')
  const url = await http.app.listen({ host: '127.0.0.1', port: 0 })
  const browser = await playwright.launch(await chromium())
  try {
    const page = await browser.newPage()
    const problems: string[] = []
    const asked = new Set<string>()
    page.on('console', (message) => message.type() === 'error' && problems.push(message.text()))
    page.on('pageerror', (error) => problems.push(error.message))
    page.on('request', (request) => asked.add(new URL(request.url()).origin))

    await page.goto(`${url}/docs`)
    const submit = page.locator('.opblock', { hasText: 'Submit a job' }).first()
    await submit.click()
    await submit.getByRole('button', { name: 'Try it out' }).click()
    await submit.locator('textarea').fill('{"kind": "from-the-docs"}')
    await submit.getByRole('button', { name: 'Execute' }).click()
    await submit.locator('.live-responses-table').getByText('"job_id"').waitFor()

    expect(await page.locator('.topbar').count()).toBe(0)
    expect(await http.services.jobs.counts('all')).toEqual({ PENDING: 1 })
    expect(problems).toEqual([])
    expect([...asked].filter((origin) => origin !== 'null')).toEqual([url])
  } finally {
    await browser.close()
    await http.close()
  }
})
