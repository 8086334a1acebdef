const OLDEST = { major: 22, minor: 13 }

/** Why a Node cannot run the control plane; null: it can. Nothing is imported here, so that every Node can say it. */
export function nodeTooOld(version: string): string | null {
  const [major = 0, minor = 0] = version.split('.').map(Number)
  if (major > OLDEST.major || (major === OLDEST.major && minor >= OLDEST.minor)) return null
  return `Ichido needs Node ${OLDEST.major}.${OLDEST.minor} or newer; this is ${version}`
}
