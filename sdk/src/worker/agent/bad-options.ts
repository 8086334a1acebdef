/** Refused before anything was done, in words for whoever typed it. */
export class BadOptions extends Error {
  override readonly name = 'BadOptions'
}
