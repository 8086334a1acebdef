import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../../scripts/testing/services.ts'
import { ichidoJson, killAll, serve } from '../testing/cli.ts'
import { tlsProblem } from './store.ts'

const problemOf = (databaseUrl: string, databaseDirectUrl?: string) =>
  tlsProblem({ databaseUrl, schema: 'ichido', databaseDirectUrl })?.message ?? null

test.each([
  'postgres://u:p@db.example/jobs',
  'postgres://u:p@db.example:5432/jobs?sslmode=disable',
  'postgres://u:p@db.example/jobs?sslmode=prefer',
  'postgres://u:p@127.0.0.1:5432,10.0.0.2:5432/jobs',
  'postgres://u:p@[fd00::1]:5432/jobs',
  'postgresql://u:p@localhost/jobs?host=db1,db2',
])('%s causes a warning without its password', (address) => {
  expect(problemOf(address)).toMatch(
    /^DATABASE_URL leads to (db.example|10.0.0.2|fd00::1|db1) and does not require TLS/,
  )
})

test.each([
  'postgres://u:p@db.example/jobs?sslmode=require',
  'postgres://u:p@db.example/jobs?sslmode=verify-full',
  'postgres://u:p@db.example/jobs?ssl=true',
  'postgres://u:p@localhost/jobs',
  'postgres://u:p@127.0.0.1:5432,[::1]:5433/jobs',
  'postgres://u@localhost/jobs?host=/var/run/postgresql',
  'postgres:///jobs',
])('%s causes no warning', (address) => {
  expect(problemOf(address)).toBeNull()
})

test('the direct address is checked, too', () => {
  expect(problemOf('postgres://localhost/jobs', 'postgres://db.example/jobs')).toMatch(/^DATABASE_DIRECT_URL leads to/)
  expect(tlsProblem({ dataDir: 'data' })).toBeNull()
})

describe('an address of this machine that does not look like one', () => {
  let database: FreshDatabase
  let env: Record<string, string>
  beforeAll(async () => {
    database = await freshDatabase()
    env = { DATABASE_URL: database.tcpUrl.replace('127.0.0.1', '127.1') }
  })
  afterAll(async () => {
    await killAll()
    await database.leave()
  })

  test('causes a warning at the start and by the doctor', async () => {
    const server = await serve(env)
    expect((await server.stop()).stderr).toContain('warning: DATABASE_URL leads to 127.1 and does not require TLS')
    const { checks } = await ichidoJson(['doctor'], { ...env, ICHIDO_URL: 'http://127.0.0.1:2' })
    expect(checks).toContainEqual(expect.objectContaining({ check: 'tls', status: 'warning' }))
  })
})
