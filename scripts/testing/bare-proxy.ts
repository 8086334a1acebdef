import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { buffer } from 'node:stream/consumers'

/** Headers that nginx does not forward by default. */
const OWN = ['host', 'connection', 'keep-alive', 'transfer-encoding', 'te', 'expect', 'upgrade', 'content-length']

export type BareProxy = { url: string; stop(): Promise<void> }

/**
 * Sends to the target, byte for byte, what nginx 1.22 sends with only `proxy_pass`: HTTP/1.0, the target's own name as
 * Host, and no header about itself.
 */
export async function startBareProxy(target: string): Promise<BareProxy> {
  const { hostname, port, host } = new URL(target)
  const server = createServer(async (request, response) => {
    const body = await buffer(request)
    const upstream = connect(Number(port), hostname)
    upstream.end(Buffer.concat([Buffer.from(headOf(request, host, body.length)), body]))
    const answer = (await buffer(upstream)).toString('latin1')
    const end = answer.indexOf('\r\n\r\n')
    const type = /^content-type: (.*)$/im.exec(answer.slice(0, end))?.[1] ?? 'text/plain'
    response.writeHead(Number(answer.slice(9, 12)), { 'content-type': type })
    response.end(Buffer.from(answer.slice(end + 4), 'latin1'))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async stop() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

function headOf({ method, url, rawHeaders }: IncomingMessage, host: string, bodyLength: number): string {
  const lines = [`${method} ${url} HTTP/1.0`, `Host: ${host}`, 'Connection: close']
  if (bodyLength > 0) lines.push(`Content-Length: ${bodyLength}`)
  for (let i = 0; i < rawHeaders.length; i += 2) {
    const [name = '', value = ''] = rawHeaders.slice(i, i + 2)
    if (!OWN.includes(name.toLowerCase())) lines.push(`${name}: ${value}`)
  }
  return `${lines.join('\r\n')}\r\n\r\n`
}
