import type { IncomingHttpHeaders } from 'node:http'
import { foreignHeader } from './own-page.ts'

const LOOPBACK_HOST = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?$/i

/**
 * Headers that proxies, CDNs, tunnels and platforms add to requests that they pass on. Neither browsers nor our clients send
 * any of them, so each means that the caller need not be on this machine. Headers that callers send themselves are not
 * among them: `X-Request-Id`, `traceparent`, `b3`, `X-Requested-With`.
 */
const PROXY_HEADERS = [
  'via',
  // nginx, Apache, HAProxy, Envoy and what came before the standard
  'x-real-ip|x-client-ip|x-cluster-client-ip|x-remote-(addr|ip)|x-source-ip|client-ip|real-ip|remote-addr|proxy-client-ip',
  'x-(scheme|url-scheme|proto|host|http-host-override|rewrite-url|request-start|queue-start|varnish|proxyuser-ip)',
  'x-client-(cert|verify|dn|subject)|ssl-client-cert',
  // CDNs and clouds
  'true-client-ip|do-connecting-ip|ali-cdn-real-ip|x-cloud-trace-context|x-amz-cf-id|cdn-loop|cdn-requestid|x-datadome-.+',
].join('|')
const PROXY_PREFIXES = [
  'x-forward(ed|er|ing)|forward(ed|er|ing)|x-original|x-originating|x-proxy|wl-proxy|proxy',
  'x-envoy|x-haproxy|x-traefik|x-kong|x-bluecoat|x-varnish|x-ssl|x-arr|x-appgw|x-waws|x-azure|x-fd',
  'cf|fastly|x-fastly|cloudfront|x-amzn|akamai|x-akamai|x-sucuri|incap|x-vercel|x-nf|fly|x-fly|x-railway|x-appengine',
  'x-google|ngrok|tailscale',
].join('|')
const PROXY_HEADER = new RegExp(`^(${PROXY_HEADERS}|(${PROXY_PREFIXES})(-.*)?)$`)

/** The facts of a request that open mode checks. */
export interface DirectRequest {
  headers: IncomingHttpHeaders
  httpVersion: string
  protocol: string
}

/**
 * Why a request may not be served without credentials, or null. The server listens on this machine only. This refuses
 * requests that reach it anyway: through a proxy, or from web pages of other sites in a browser on this machine.
 */
export function openModeRefusal({ headers, httpVersion, protocol }: DirectRequest): string | null {
  // nginx before 1.29.7 sends HTTP/1.0 to its upstreams. Clients have sent 1.1 for decades.
  if (httpVersion !== '1.1') {
    return `Without tokens the server does not work behind a proxy, and this request came by HTTP/${httpVersion}; make a token`
  }
  for (const name in headers) {
    if (PROXY_HEADER.test(name)) {
      return `Without tokens the server does not work behind a proxy, and this request carries ${name}; make a token`
    }
  }
  const { host = '', origin } = headers
  if (!LOOPBACK_HOST.test(host)) {
    return `Without tokens the server only answers at localhost, 127.0.0.1 and [::1], not at ${JSON.stringify(host)}`
  }
  const foreign = foreignHeader(headers, [`${protocol}://${host}`])
  if (foreign === 'origin') {
    return `Without tokens the server refuses requests from pages of other sites: ${JSON.stringify(origin)}`
  }
  return foreign === null ? null : `Without tokens the server refuses ${String(headers[foreign])} requests of browsers`
}
