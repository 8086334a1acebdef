// The part of an OpenAPI document that ours uses.
export interface OpenApi {
  paths: Record<string, Record<string, Operation>>
  components: { schemas: Record<string, Schema> }
}

interface Operation {
  summary?: string
  description?: string
  tags?: string[]
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema: Schema }[]
  requestBody?: { content: Record<string, { schema: Schema }> }
  responses: Record<string, { description: string; content?: Record<string, { schema?: Schema }> }>
  security?: object[]
}

interface Schema {
  $ref?: string
  type?: string | string[]
  description?: string
  enum?: unknown[]
  const?: unknown
  format?: string
  items?: Schema
  anyOf?: Schema[]
  oneOf?: Schema[]
  allOf?: Schema[]
  properties?: Record<string, Schema>
  required?: string[]
  additionalProperties?: Schema | boolean
  minimum?: number
  maximum?: number
  minLength?: number
  maxLength?: number
  minItems?: number
  maxItems?: number
  default?: unknown
}

const HEAD = `# HTTP reference

This page lists every call and every field. It is generated from the schemas that check each request. A running server shows the same at \`/docs\`, and as OpenAPI 3.1 at
\`/openapi.json\`. [HTTP API](api.md) explains how the calls work together, and [errors](errors.md) explains the codes.

The column *who* names the required token: \`anybody\` needs none, a \`worker\` needs its worker token, and all others need an API token, unless the server is in open mode.
`

/** Builds the page from the answer of \`/openapi.json\`. */
export function httpReference({ paths, components: { schemas } }: OpenApi): string {
  const operations = Object.entries(paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), ...operation })),
  )
  const everywhere = codesOfAll(operations)
  const tags = [...new Set(operations.map(({ tags }) => tags?.[0] ?? 'other'))]
  return [
    HEAD,
    `Any call may be answered with ${[...everywhere].map(code).join(', ')}; these are not listed again.\n`,
    ...tags.flatMap((tag) => [
      `## ${tag[0]?.toUpperCase()}${tag.slice(1)}\n`,
      ...operations.filter(({ tags }) => (tags?.[0] ?? 'other') === tag).map((one) => operationText(one, everywhere)),
    ]),
    '## Shapes\n',
    ...Object.entries(schemas).map(([name, schema]) => `### ${name}\n\n${sentence(schema)}${bodyText(schema)}`),
  ].join('\n')
}

/** Only the list of error codes is longer. */
const NAMED_MAX = 20

type Listed = Operation & { path: string; method: string }

function operationText(operation: Listed, everywhere: ReadonlySet<string>): string {
  const { path, method, summary = '', description, parameters = [], requestBody, responses } = operation
  const body = Object.entries(requestBody?.content ?? {})
  const good = Object.entries(responses).filter(([status]) => Number(status) < 400)
  const codes = codesOf(operation).filter((one) => !everywhere.has(one))
  return [
    `### ${method} ${path}\n`,
    `${summary}${/[?.]$/.test(summary) ? '' : '.'} *${who(operation)}*\n`,
    ...(description === undefined ? [] : [`${description}\n`]),
    ...(parameters.length === 0
      ? []
      : [
          table(
            parameters.map((one) =>
              row(
                one.name,
                one.schema,
                one.required,
                `${one.in}${one.description === undefined ? '' : `: ${one.description}`}`,
              ),
            ),
          ),
        ]),
    ...body.map(
      ([type, { schema }]) => `Body${type === 'application/json' ? '' : ` (\`${type}\`)`}:\n\n${bodyText(schema)}`,
    ),
    ...good.map(([status, { description: words, content = {} }]) => {
      const shown = Object.entries(content).map(([type, { schema }]) =>
        schema === undefined ? `\`${type}\`` : typeOf(schema),
      )
      return `- **${status}** ${words === 'Default Response' ? 'OK' : words.replaceAll('\n', ' ')}${shown.length > 0 ? `: ${[...new Set(shown)].join(', ')}` : ''}`
    }),
    ...(codes.length > 0 ? [`- refused with ${codes.map(code).join(', ')}`] : []),
    '',
  ].join('\n')
}

const code = (name: string) => `\`${name}\``

function who({ security = [] }: Operation): string {
  if (security.length === 0) return 'anybody'
  return isOptional(security) ? 'API token' : 'worker'
}

/** In open mode callers need no credentials; workers always do. */
function isOptional(security: readonly object[]): boolean {
  return security.some((scheme) => Object.keys(scheme).length === 0)
}

/** The descriptions of error responses name their codes. */
function codesOf({ responses }: Operation): string[] {
  const refused = Object.entries(responses).filter(([status]) => Number(status) >= 400)
  return refused.flatMap(([, { description }]) =>
    [...description.matchAll(/^`([A-Z_]+)`:/gm)].map(([, name = '']) => name),
  )
}

function codesOfAll(operations: readonly Listed[]): Set<string> {
  const withCaller = operations.filter(({ security = [] }) => isOptional(security)).map(codesOf)
  const [first = [], ...rest] = withCaller
  return new Set(first.filter((name) => rest.every((codes) => codes.includes(name))))
}

function sentence({ description }: Schema): string {
  return description === undefined ? '' : `${description}\n\n`
}

function bodyText(schema: Schema): string {
  const { properties, required = [] } = schema
  if (properties === undefined) return `${typeOf(schema)}\n`
  const rows = Object.entries(properties).map(([name, one]) => row(name, one, required.includes(name), one.description))
  return table(rows)
}

function row(name: string, schema: Schema, required = false, words = ''): string {
  const preset =
    schema.default === undefined || schema.default === null ? '' : `default ${JSON.stringify(schema.default)}`
  const about = [words, preset].filter(Boolean).join('; ')
  return `| \`${name}\`${required ? '' : '?'} | ${cell(typeOf(schema))} | ${cell(about)} |`
}

const table = (rows: readonly string[]) => `| | | |\n| --- | --- | --- |\n${rows.join('\n')}\n`
const cell = (text: string) => text.replaceAll('|', '\\|').replaceAll('\n', ' ')

function typeOf(schema: Schema): string {
  const { $ref, anyOf, oneOf, allOf, items, properties, required = [], additionalProperties } = schema
  const name = $ref?.replace(/.*\//, '')
  if (name !== undefined) return `[${name}](#${name.toLowerCase()})`
  const choices = anyOf ?? oneOf
  if (choices !== undefined) return [...new Set(choices.map(typeOf))].join(' or ')
  if (allOf !== undefined) return allOf.map(typeOf).join(' and ')
  if (schema.enum !== undefined && schema.enum.length > NAMED_MAX) return 'a [code](errors.md)'
  if (schema.enum !== undefined) return schema.enum.map((value) => `\`${JSON.stringify(value)}\``).join(' or ')
  if (schema.const !== undefined) return `\`${JSON.stringify(schema.const)}\``
  if (items !== undefined) return `list of ${typeOf(items)}${range(schema.minItems, schema.maxItems)}`
  if (properties !== undefined) {
    const members = Object.entries(properties).map(
      ([key, one]) => `\`${key}\`${required.includes(key) ? '' : '?'} ${typeOf(one)}`,
    )
    return `{ ${members.join(', ')} }`
  }
  if (typeof additionalProperties === 'object') return `names with ${typeOf(additionalProperties)}`
  return plain(schema)
}

function plain({ type, format, minimum, maximum, minLength, maxLength }: Schema): string {
  if (type === undefined) return 'any JSON'
  const names = [type].flat().map((name) => (name === 'string' ? textOf(format) : name))
  return `${names.join(' or ')}${range(minimum, maximum)}${range(minLength, maxLength)}`
}

const textOf = (format: string | undefined) => (format === 'date-time' ? 'instant' : format === 'uuid' ? 'id' : 'text')

function range(from: number | undefined, to: number | undefined): string {
  const bounded = (bound: number | undefined) => bound !== undefined && Math.abs(bound) < Number.MAX_SAFE_INTEGER
  if (bounded(from) && bounded(to)) return ` ${from}–${to}`
  if (bounded(to)) return ` up to ${to}`
  return bounded(from) ? ` from ${from}` : ''
}
