/** Without what is undefined: it would be sent as that word. */
export function query(parameters: object): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined)
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()
}
