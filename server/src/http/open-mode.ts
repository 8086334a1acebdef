import type { FastifyRequest } from 'fastify'

const LOOPBACK_HOST = /^(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?$/i
/** A proxy in front would make every stranger look local. */
const PROXY_HEADER = /^(forwarded|x-forwarded-.*|via)$/

/**
 * Why a request may not be served without credentials, or null. The server listens on this machine only; what is kept
 * out here is what reaches it all the same: a proxy, and web pages of other sites in a browser on this machine.
 */
export function openModeRefusal({ headers, protocol }: Pick<FastifyRequest, 'headers' | 'protocol'>): string | null {
  const proxied = Object.keys(headers).find((name) => PROXY_HEADER.test(name))
  if (proxied !== undefined) {
    return `Without tokens the server does not work behind a proxy, and this request carries ${proxied}; make a token`
  }
  const { host = '', origin } = headers
  if (!LOOPBACK_HOST.test(host)) {
    return `Without tokens the server answers to localhost, 127.0.0.1 and [::1] only, not to ${JSON.stringify(host)}`
  }
  if (origin !== undefined && origin.toLowerCase() !== `${protocol}://${host}`.toLowerCase()) {
    return `Without tokens the server takes no requests from pages of other sites: ${JSON.stringify(origin)}`
  }
  const site = headers['sec-fetch-site']
  if (site !== undefined && site !== 'same-origin' && site !== 'none') {
    return `Without tokens the server takes no ${String(site)} requests of browsers`
  }
  return null
}
