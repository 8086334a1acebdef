import { readdirSync } from 'node:fs'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { type SmallDisk, smallDisk } from '../../../../../scripts/testing/small-disk.ts'
import { asStoreFull, openSqlite, requireRoomIn } from './sqlite.ts'

const BYTES = 2 * 1024 * 1024

let disk: SmallDisk
beforeEach(async () => {
  disk = await smallDisk(BYTES)
})
afterEach(() => disk.remove())

const [IOERR_SHMSIZE, CANTOPEN, CORRUPT] = [4874, 14, 11]
const sqliteError = (errcode: number) => Object.assign(new Error('disk I/O error'), { errcode })

test.each([IOERR_SHMSIZE, CANTOPEN])('the error %i means a full disk only where it is full', (errcode) => {
  const error = sqliteError(errcode)
  expect(asStoreFull(error, disk.folder)).toBe(error)
  disk.fillUp()
  expect(asStoreFull(error, disk.folder)).toMatchObject({ name: 'StoreFull', place: 'store', cause: error })
  const other = sqliteError(CORRUPT)
  expect(asStoreFull(other, disk.folder)).toBe(other)
})

test('a check for room leaves nothing behind', () => {
  requireRoomIn(disk.folder)
  expect(readdirSync(disk.folder)).toEqual([])
  disk.fill(BYTES - 4096)
  expect(() => requireRoomIn(disk.folder)).toThrow('The disk that holds DATA_DIR is full.')
  expect(readdirSync(disk.folder)).toEqual(['ballast'])
  disk.free()
  requireRoomIn(disk.folder)
})

test('a new database reports a full disk, and opens once there is room', async () => {
  const open = () => openSqlite({ dataDir: disk.folder, now: Date.now })
  disk.fill(BYTES - 100 * 1024)
  expect(open).toThrow('The disk that holds DATA_DIR is full.')
  disk.free()
  await open().close()
})
