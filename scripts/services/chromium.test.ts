import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { chromium as playwright } from 'playwright-core'
import { expect, test } from 'vitest'
import { chromium } from '../testing/services.ts'

test('the browser opens a page of a local server and runs its script', { timeout: 300_000 }, async () => {
  const page = '<title>before</title><script>document.title = "after"</script>'
  const server = createServer((_, response) => response.setHeader('content-type', 'text/html').end(page))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const browser = await playwright.launch(await chromium())
  try {
    const tab = await browser.newPage()
    await tab.goto(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`)
    expect(await tab.title()).toBe('after')
  } finally {
    await browser.close()
    server.close()
  }
})
