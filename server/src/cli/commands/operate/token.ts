import { IchidoError, ROLES, type TokenShape } from '@ichido/sdk/protocol'
import { type Command, Option } from 'commander'
import type { z } from 'zod'
import { createTokenRequest } from '../../../contract/access.ts'
import { readStoreConfig, type StoreConfig } from '../../../node/config.ts'
import { type Connection, connect, processEnv, Unreachable } from '../../connection/connect.ts'
import { opening, withStore } from '../../connection/store.ts'
import type { JsonFlag } from '../../flags.ts'
import { tokenLine } from '../../output/banner.ts'
import { Failure } from '../../output/exit.ts'
import { instant, printPage, sayOrJson } from '../../output/print.ts'
import { out, outJson, paint, say } from '../../output/terminal.ts'
import { checked, days } from '../../values.ts'

interface CreateFlags extends JsonFlag {
  user: string
  role: string
  name?: string
  ttlDays?: number
}

type NewToken = { token: string; token_id: string }
/** `store` shows where it was made, because a wrong setting may lead to another store. `first`: no token existed before. */
type Made = NewToken & { store: string; first: boolean }

export function addToken(program: Command): void {
  const token = program.command('token').description('make, list and revoke API tokens')
  token
    .command('create')
    .description('make a token and print it; it is shown only once')
    .requiredOption('--user <id>', 'the owner of the token')
    .addOption(new Option('--role <role>').choices(ROLES).makeOptionMandatory())
    .option('--name <text>', 'the purpose of the token')
    .option(
      '--ttl-days <time>',
      'how long it works, such as 12h; a plain number is in days (default: until it is revoked)',
      days,
    )
    .option('--json', 'print JSON')
    .action(create)
  token
    .command('list')
    .description('list tokens, without their secrets')
    .option('--json', 'print JSON')
    .action(async ({ json }: JsonFlag) => list(connect(), json))
  token
    .command('revoke <token-id>')
    .description('revoke a token')
    .option('--json', 'print JSON')
    .action(async (tokenId: string, { json }: JsonFlag) => {
      await connect().ask('DELETE', `/v1/tokens/${encodeURIComponent(tokenId)}`)
      sayOrJson({ token_id: tokenId, revoked: true }, json, `Token ${tokenId} is revoked.`)
    })
}

async function create({ user, role, name, ttlDays, json }: CreateFlags): Promise<void> {
  const ttl_seconds = ttlDays === undefined ? undefined : Math.round(ttlDays * 86_400)
  const flags = { user_id: '--user', name: '--name', ttl_seconds: '--ttl-days' }
  const request = checked(createTokenRequest, { user_id: user, role, name, ttl_seconds }, flags)
  const config = readStoreConfig(processEnv)
  const { first, ...made } = (await meansServer(config))
    ? await createOnNamedServer(connect(), request)
    : await createOnStore(config, request)
  if (first && role !== 'admin') {
    say(`${paint('yellow', 'warning:')} From now on every call needs a token, and this one cannot make others.`)
    const when = 'dataDir' in config.storage ? 'With the server stopped, this' : 'This'
    say(`${when} makes one for an admin:\n  ${tokenLine(config)}`)
  }
  if (json) return outJson(made)
  out(made.token)
  say(`Made for ${user} (${role}) in ${made.store}. It is not shown again.`)
  say('Use it as ICHIDO_TOKEN, or send it: Authorization: Bearer …')
}

type TokenRequest = z.output<typeof createTokenRequest>

/** True if only ICHIDO_URL is set and the default folder has no store: a new store there would have no server. */
async function meansServer(config: StoreConfig): Promise<boolean> {
  const { ICHIDO_URL, DATA_DIR } = processEnv.env
  if (!ICHIDO_URL || DATA_DIR || !('dataDir' in config.storage)) return false
  const { schemaState } = await import('../../../node/maintenance.ts')
  return (await opening(config, schemaState(config.storage))).verdict === 'none'
}

async function createOnNamedServer(connection: Connection, request: TokenRequest): Promise<Made> {
  try {
    return await askServer(connection, request)
  } catch (error) {
    if (!(error instanceof Unreachable)) throw error
    const advice = 'Start it, or set DATA_DIR or DATABASE_URL to the store that the token is for.'
    throw new Failure(error.message, advice)
  }
}

async function createOnStore(config: StoreConfig, request: TokenRequest): Promise<Made> {
  const { createToken, isAuthRequired, StoreInUse } = await import('../../../node/maintenance.ts')
  const { user_id: userId, role, name = '', ttl_seconds: ttlSeconds = null } = request
  try {
    return await withStore(config, async (store) => ({
      first: !(await isAuthRequired(store)),
      ...(await createToken(store, { userId, role, name, ttlSeconds })),
      store: (await store.health()).location,
    }))
  } catch (error) {
    if (!(error instanceof StoreInUse)) throw error
    return createOnServer(connect(), request)
  }
}

async function askServer({ ask, url }: Connection, request: TokenRequest): Promise<Made> {
  const before = await ask<{ data: TokenShape[] }>('GET', '/v1/tokens')
  const made = await ask<NewToken>('POST', '/v1/tokens', request)
  return { first: before.data.length === 0, ...made, store: `the store of ${url}` }
}

/** A running server locks the embedded store, so the server makes the token. */
async function createOnServer(connection: Connection, request: TokenRequest): Promise<Made> {
  const { url } = connection
  try {
    return await askServer(connection, request)
  } catch (error) {
    if (error instanceof IchidoError && ['UNAUTHENTICATED', 'FORBIDDEN'].includes(error.code)) {
      throw new Failure(
        'A running server has locked this store.',
        "Set ICHIDO_TOKEN to an admin's token, or stop the server and run this again.",
      )
    }
    if (!(error instanceof Unreachable)) throw error
    throw new Failure(
      `A running server has locked the store, and ${url} does not answer.`,
      'Set ICHIDO_URL to the URL of that server (and ICHIDO_TOKEN to an admin token), or stop the server first.',
    )
  }
}

async function list({ ask }: Connection, json: boolean | undefined): Promise<void> {
  printPage(await ask<{ data: TokenShape[] }>('GET', '/v1/tokens'), json, 'No tokens.', {
    'TOKEN ID': (token) => token.token_id,
    USER: (token) => token.user_id,
    ROLE: (token) => token.role,
    NAME: (token) => token.name || '-',
    CREATED: (token) => instant(token.created_at),
    EXPIRES: (token) => instant(token.expires_at),
    REVOKED: (token) => instant(token.revoked_at),
  })
}
