const POSITIONS = /^\s*ATOMIC_POSITIONS\b/i
/** Where the next card or namelist of an input of pw.x begins. */
const NEXT =
  /^\s*(&|\/|(ATOMIC_SPECIES|ATOMIC_POSITIONS|ATOMIC_VELOCITIES|ATOMIC_FORCES|K_POINTS|ADDITIONAL_K_POINTS|CELL_PARAMETERS|CONSTRAINTS|OCCUPATIONS|SOLVENTS|HUBBARD)\b)/i
/** A symbol and three coordinates. */
const WORDS_OF_ATOM = 4

/** How many atoms an input of pw.x has: the lines of its card ATOMIC_POSITIONS with a symbol and three coordinates. */
export function countAtoms(content: string): number {
  const lines = content.split(/\r?\n/)
  const begin = lines.findIndex((line) => POSITIONS.test(line)) + 1
  if (begin === 0) return 0
  const card = lines.slice(begin)
  const end = card.findIndex((line) => NEXT.test(line))
  const own = end === -1 ? card : card.slice(0, end)
  return own.filter((line) => wordsOf(line).length >= WORDS_OF_ATOM).length
}

function wordsOf(line: string): string[] {
  const [text = ''] = line.split(/[!#]/, 1)
  return text.split(/\s+/).filter((word) => word !== '')
}
