import { clip } from './clip.ts'

/** Of a name that somebody made up. */
const PART_MAX = 101
/** Of 64 levels of them. */
const FIELD_MAX = 301

/** Where in a request something is, for people and for `details.field`. */
export function fieldName(path: readonly PropertyKey[]): string {
  return clip(path.map(partName).join('.'), FIELD_MAX)
}

/** Also a member without a name has one: without any it would be the object that it is in. */
function partName(part: PropertyKey): string {
  return part === '' ? '""' : clip(String(part), PART_MAX)
}
