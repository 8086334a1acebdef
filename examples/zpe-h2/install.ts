import { onPath } from '../../scripts/services/find.ts'
import { installPackages } from '../../scripts/testing/debian-packages.ts'

/** Installs Debian's Quantum ESPRESSO as root if pw.x is missing. Without root it fails with advice. */
export async function requirePw(say: (line: string) => void = () => {}): Promise<void> {
  if (onPath('pw.x') !== undefined) return
  say("There is no pw.x on the PATH: installing Debian's quantum-espresso, 400 MB")
  await installPackages(['quantum-espresso', 'quantum-espresso-data'], 'put a pw.x of your own on the PATH')
}
