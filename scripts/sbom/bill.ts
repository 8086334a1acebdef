import type { LockedPackage, LockFile } from '../boot/lock-file.mjs'

/** The package that users run. */
const SUBJECT = 'server'
const FOLDER = 'node_modules/'

type Placed = LockedPackage & { path: string; name: string; version: string }

/** The shipped packages, as CycloneDX 1.5: all packages of a lock file except those that only development needs. */
export function billOfMaterials(lock: LockFile, { serial, timestamp }: { serial: string; timestamp: string }) {
  const all = new Map(Object.entries(lock.packages).map(([path, each]) => [path, placed(path, each)]))
  const subject = all.get(SUBJECT)
  if (subject === undefined) throw new Error(`package-lock.json has no package in ${SUBJECT}`)
  // Packages of this repository that the server does not depend on are installed separately.
  const isInstalled = (each: Placed) =>
    each === subject || each.path.includes(FOLDER) || Object.hasOwn(subject.dependencies ?? {}, each.name)
  const shipped = [...all.values()].filter((each) => each.link !== true && each.dev !== true && isInstalled(each))
  // A package that is installed twice, for two dependents, is listed once.
  const unique = [...new Map(shipped.map((each) => [refOf(each), each])).values()].sort((a, b) =>
    refOf(a) < refOf(b) ? -1 : 1,
  )
  const dependencies = new Map<string, Set<string>>()
  for (const each of shipped) {
    const known = dependencies.get(refOf(each)) ?? new Set()
    for (const name of Object.keys({ ...each.dependencies, ...each.optionalDependencies })) {
      const found = resolve(all, each.path, name)
      if (found !== undefined) known.add(refOf(found))
    }
    dependencies.set(refOf(each), known)
  }
  return {
    $schema: 'http://cyclonedx.org/schema/bom-1.5.schema.json',
    bomFormat: 'CycloneDX',
    specVersion: '1.5',
    serialNumber: `urn:uuid:${serial}`,
    version: 1,
    metadata: { timestamp, component: { ...component(subject), type: 'application' } },
    components: unique.filter((each) => each !== subject).map(component),
    dependencies: unique.map((each) => ({
      ref: refOf(each),
      dependsOn: [...(dependencies.get(refOf(each)) ?? [])].sort(),
    })),
  }
}

function placed(path: string, found: LockedPackage): Placed {
  const name = found.name ?? path.slice(path.lastIndexOf(FOLDER) + FOLDER.length)
  return { ...found, path, name, version: found.version ?? '' }
}

/** Resolves like Node: in the nearest node_modules folder, then further out. */
function resolve(all: ReadonlyMap<string, Placed>, from: string, name: string): Placed | undefined {
  for (let folder = from; ; folder = folder.slice(0, Math.max(0, folder.lastIndexOf(`/${FOLDER}`)))) {
    const found = all.get(`${folder === '' ? '' : `${folder}/`}${FOLDER}${name}`)
    if (found !== undefined) return found.link === true ? all.get(found.resolved ?? '') : found
    if (folder === '') return undefined
  }
}

const refOf = ({ name, version }: Placed): string => `pkg:npm/${name.replace('@', '%40')}@${version}`

function component(each: Placed) {
  const [group, name] = each.name.startsWith('@') ? each.name.split('/') : [undefined, each.name]
  return {
    type: 'library',
    'bom-ref': refOf(each),
    ...(group === undefined ? {} : { group }),
    name,
    version: each.version,
    scope: each.optional === true ? 'optional' : 'required',
    purl: refOf(each),
    ...(each.license === undefined ? {} : { licenses: [{ expression: each.license }] }),
    ...(each.integrity === undefined ? {} : { hashes: [{ alg: 'SHA-512', content: hex(each.integrity) }] }),
  }
}

const hex = (integrity: string): string => Buffer.from(integrity.replace('sha512-', ''), 'base64').toString('hex')
