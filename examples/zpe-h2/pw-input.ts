import { QeError } from './qe-error.ts'

/** An input of pw.x: Fortran namelists, then cards. Values are kept as they are written. */
export interface PwInput {
  namelists: ReadonlyMap<string, ReadonlyMap<string, string>>
  cards: readonly Card[]
}

export interface Card {
  name: string
  option: string
  lines: readonly string[]
}

const CARD =
  /^(ATOMIC_SPECIES|ATOMIC_POSITIONS|K_POINTS|CELL_PARAMETERS|OCCUPATIONS|CONSTRAINTS|ATOMIC_FORCES)\b\W*(\w*)\W*$/i
const ASSIGNMENT = /\s*([a-z]\w*(?:\(\d+(?:,\d+)*\))?)\s*=\s*('[^']*'|"[^"]*"|[\w.+-]+)\s*(?:,|$|(?=\s))/iy

/**
 * Strict on purpose: pw.x gets a new input, written from the parsed values. A submitted input therefore cannot name
 * folders of this machine in a way that this parser overlooks.
 */
export function parsePwInput(text: string): PwInput {
  const namelists = new Map<string, Map<string, string>>()
  const cards: { name: string; option: string; lines: string[] }[] = []
  let open: Map<string, string> | null = null
  for (const raw of text.split(/\r?\n/)) {
    const line = withoutComment(raw)
    if (line === '') continue
    const begin = /^&(\w+)$/.exec(line)
    if (open !== null) {
      if (line === '/') open = null
      else for (const [name, value] of assignments(line)) open.set(name, value)
    } else if (begin !== null) {
      open = new Map()
      namelists.set((begin[1] ?? '').toUpperCase(), open)
    } else {
      const card = CARD.exec(line)
      if (card !== null) cards.push({ name: (card[1] ?? '').toUpperCase(), option: card[2] ?? '', lines: [] })
      else if (cards.length === 0) throw new QeError('QE_INPUT_ERROR', `Neither a namelist nor a card: ${line}`)
      else cards.at(-1)?.lines.push(line)
    }
  }
  if (open !== null) throw new QeError('QE_INPUT_ERROR', 'A namelist does not end with a line that says /')
  return { namelists, cards }
}

function withoutComment(line: string): string {
  const [kept = ''] = /^(?:'[^']*'|"[^"]*"|[^!#'"])*/.exec(line) ?? []
  return kept.trim()
}

function* assignments(line: string): Generator<[name: string, value: string]> {
  ASSIGNMENT.lastIndex = 0
  while (ASSIGNMENT.lastIndex < line.length) {
    const at = ASSIGNMENT.lastIndex
    const [, name, value] = ASSIGNMENT.exec(line) ?? []
    if (name === undefined || value === undefined) {
      throw new QeError('QE_INPUT_ERROR', `Not an assignment: ${line.slice(at).trim()}`)
    }
    yield [name.toLowerCase(), value]
  }
}

export function writePwInput({ namelists, cards }: PwInput): string {
  const lists = [...namelists].map(([name, values]) => {
    const lines = [...values].map(([variable, value]) => `  ${variable} = ${value}\n`)
    return `&${name}\n${lines.join('')}/\n`
  })
  const rest = cards.map(({ name, option, lines }) => `${[name, option, ...lines].join('\n').replace('\n', ' ')}\n`)
  return [...lists, ...rest].join('')
}

/** The same input with these values in &CONTROL, which pw.x reads first. */
export function withControl(input: PwInput, values: Readonly<Record<string, string>>): PwInput {
  const control = new Map([...(input.namelists.get('CONTROL') ?? []), ...Object.entries(values)])
  return { ...input, namelists: new Map([['CONTROL', control], ...input.namelists]).set('CONTROL', control) }
}

export type Vector = readonly [x: number, y: number, z: number]

export interface Atom {
  symbol: string
  /** In Å. */
  at: Vector
}

function cardOf(input: PwInput, name: string): Card {
  const card = input.cards.find((one) => one.name === name)
  if (card === undefined) throw new QeError('QE_INPUT_ERROR', `The input has no ${name}`)
  return card
}

export function atomsOf(input: PwInput): Atom[] {
  const { option, lines } = cardOf(input, 'ATOMIC_POSITIONS')
  if (option.toLowerCase() !== 'angstrom') throw new QeError('QE_INPUT_ERROR', 'ATOMIC_POSITIONS must be in angstrom')
  return lines.map(parseAtom)
}

export function parseAtom(line: string): Atom {
  const [symbol = '', ...words] = line.trim().split(/\s+/)
  const [x = Number.NaN, y = Number.NaN, z = Number.NaN] = words.map(fortranNumber)
  if ([x, y, z].some(Number.isNaN)) throw new QeError('QE_INPUT_ERROR', `Not the position of an atom: ${line}`)
  return { symbol, at: [x, y, z] }
}

export function withAtoms(input: PwInput, atoms: readonly Atom[]): PwInput {
  const lines = atoms.map(({ symbol, at }) => `  ${[symbol, ...at.map((part) => part.toFixed(10))].join(' ')}`)
  const cards = input.cards.map((card) => (card.name === 'ATOMIC_POSITIONS' ? { ...card, lines } : card))
  return { ...input, cards }
}

export interface Species {
  massAmu: number
  pseudopotential: string
}

export function speciesOf(input: PwInput): Map<string, Species> {
  return new Map(
    cardOf(input, 'ATOMIC_SPECIES').lines.map((line) => {
      const [symbol = '', mass = '', pseudopotential = ''] = line.split(/\s+/)
      const massAmu = fortranNumber(mass)
      // A path would lead out of the worker's own folder of pseudopotentials.
      if (!(massAmu > 0) || !/^\w[\w.+-]*$/.test(pseudopotential)) {
        throw new QeError('QE_INPUT_ERROR', `Not a species with its mass and a plain file name: ${line}`)
      }
      return [symbol, { massAmu, pseudopotential }]
    }),
  )
}

/** Fortran writes 1.0d-4 for 1.0e-4. */
function fortranNumber(word: string): number {
  return word === '' ? Number.NaN : Number(word.replace(/d/i, 'e'))
}
