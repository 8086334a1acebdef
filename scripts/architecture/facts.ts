import { parseSync } from 'vite'

export type Import = { from: string; names: string[] }

/** The imports and uses of a source file that the rules check. */
export type Facts = {
  imports: Import[]
  /** Names that are neither properties nor keys: calls, and functions that are passed on. */
  identifiers: Set<string>
  /** `Date.now` and the like. */
  members: Set<string>
  newDateWithoutArguments: boolean
  awaits: boolean
}

type Node = { type: string; [key: string]: unknown }

const KEYED = ['Property', 'PropertyDefinition', 'MethodDefinition', 'TSPropertySignature', 'TSMethodSignature']
const SPECIFIERS = ['ImportSpecifier', 'ImportDefaultSpecifier', 'ImportNamespaceSpecifier', 'ExportSpecifier']

export function readFacts(path: string, source: string): Facts {
  const { program, errors } = parseSync(path, source)
  if (errors[0]) throw new Error(`${path}: ${errors[0].message}`)
  const facts: Facts = {
    imports: [],
    identifiers: new Set(),
    members: new Set(),
    newDateWithoutArguments: false,
    awaits: false,
  }
  visit(program, undefined, '', facts)
  return facts
}

function visit(value: unknown, parent: Node | undefined, key: string, facts: Facts): void {
  if (Array.isArray(value)) {
    for (const item of value) visit(item, parent, key, facts)
    return
  }
  if (!isNode(value)) return
  note(value, parent, key, facts)
  for (const [name, child] of Object.entries(value)) visit(child, value, name, facts)
}

function note(node: Node, parent: Node | undefined, key: string, facts: Facts): void {
  const { type } = node
  if (isNode(node.source) && typeof node.source.value === 'string') {
    facts.imports.push({ from: node.source.value, names: importedNames(node) })
  }
  if (type === 'AwaitExpression' || node.async === true || node.await === true) facts.awaits = true
  if (type === 'NewExpression' && nameOf(node.callee) === 'Date' && isEmpty(node.arguments)) {
    facts.newDateWithoutArguments = true
  }
  if (type === 'MemberExpression') {
    const object = nameOf(node.object)
    const property = nameOf(node.property)
    facts.members.add(`${object}.${property}`)
    if (object === 'globalThis' || object === 'window') facts.identifiers.add(property)
  }
  if (type === 'Identifier' && isReference(parent, key)) facts.identifiers.add(nameOf(node))
}

function isReference(parent: Node | undefined, key: string): boolean {
  if (!parent) return true
  if (parent.type === 'MemberExpression') return key !== 'property' || parent.computed === true
  if (KEYED.includes(parent.type)) return key !== 'key' || parent.computed === true || parent.shorthand === true
  return !SPECIFIERS.includes(parent.type)
}

function importedNames({ specifiers }: Node): string[] {
  const list = Array.isArray(specifiers) ? specifiers : []
  return list.map((one) => (isNode(one) && one.type === 'ImportSpecifier' ? nameOf(one.imported) : '*'))
}

const isNode = (value: unknown): value is Node =>
  typeof value === 'object' && value !== null && 'type' in value && typeof value.type === 'string'

const nameOf = (node: unknown): string => (isNode(node) && typeof node.name === 'string' ? node.name : '?')

const isEmpty = (value: unknown): boolean => Array.isArray(value) && value.length === 0
