import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { pathToFileURL } from 'node:url'
import pg from 'pg'
import { expect, test } from 'vitest'
import { freshDatabase, nodeArgs, privatePostgres } from '../testing/services.ts'
import { alive } from './process-tree.ts'

const GONE_WITHIN_MS = 10_000

async function query(url: string, sql: string): Promise<unknown[]> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return (await client.query({ text: sql, rowMode: 'array' })).rows.flat()
  } finally {
    await client.end()
  }
}

test('fresh databases are separate, and both addresses lead to the same database', async () => {
  const [a, b] = await Promise.all([freshDatabase(), freshDatabase()])
  try {
    await query(a.url, 'CREATE TABLE t (n int)')
    await query(b.url, 'CREATE TABLE t (n int)')
    await query(a.tcpUrl, 'INSERT INTO t VALUES (1)')
    expect(await query(a.url, 'SELECT count(*)::int FROM t')).toEqual([1])
    expect(await query(b.url, 'SELECT count(*)::int FROM t')).toEqual([0])
  } finally {
    await Promise.all([a.leave(), b.leave()])
  }
})

test('committed data survives a kill -9, and stop leaves no folder', async () => {
  const postgres = await privatePostgres()
  try {
    const url = await postgres.createDatabase('kept')
    expect(await query(url, "SELECT current_setting('fsync')")).toEqual(['on'])
    await query(url, 'CREATE TABLE t (n int)')
    await query(url, 'INSERT INTO t VALUES (1)')
    await postgres.kill9()
    await expect(query(url, 'SELECT 1')).rejects.toThrow()
    await postgres.restart()
    expect(await query(url, 'SELECT n FROM t')).toEqual([1])
  } finally {
    await postgres.stop()
  }
  expect(existsSync(postgres.socketDir)).toBe(false)
})

test('a service and its folder disappear when its owner is killed with -9', async () => {
  const module = pathToFileURL(`${import.meta.dirname}/postgres.ts`).href
  const code = `
    import { startPostgres } from ${JSON.stringify(module)}
    const { pid, socketDir } = await startPostgres()
    console.log(JSON.stringify({ pid, socketDir }))
    setInterval(() => {}, 1000)`
  const owner = spawn(process.execPath, [...nodeArgs, '--input-type=module', '--eval', code], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const [line] = await once(createInterface(owner.stdout), 'line')
  const { pid, socketDir } = JSON.parse(String(line))
  expect(existsSync(socketDir)).toBe(true)
  owner.kill('SIGKILL')
  const deadlineMs = Date.now() + GONE_WITHIN_MS
  while (existsSync(socketDir) && Date.now() < deadlineMs) await sleep(50)
  expect(existsSync(socketDir)).toBe(false)
  expect(alive(pid)).toBe(false)
})
