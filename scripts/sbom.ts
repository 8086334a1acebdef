// `npm run -s sbom > sbom.json` prints the packages of an installation as CycloneDX. It reads only package-lock.json, so only
// serial number and time differ between machines. `npm sbom` leaves out packages that a development dependency also needs.
import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { root } from './boot/fetch-packages.mjs'
import type { LockFile } from './boot/lock-file.mjs'
import { billOfMaterials } from './sbom/bill.ts'

const lock: LockFile = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'))
const bill = billOfMaterials(lock, { serial: randomUUID(), timestamp: new Date().toISOString() })
console.log(JSON.stringify(bill, null, 2))
