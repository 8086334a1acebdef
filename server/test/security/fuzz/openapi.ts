import { z } from 'zod'

export interface JsonSchema {
  $ref?: string
  type?: string | string[]
  const?: unknown
  enum?: readonly unknown[]
  anyOf?: JsonSchema[]
  oneOf?: JsonSchema[]
  properties?: Record<string, JsonSchema>
  required?: string[]
  additionalProperties?: boolean | JsonSchema
  items?: JsonSchema
  pattern?: string
  format?: string
  minimum?: number
  exclusiveMinimum?: number
  maximum?: number
  exclusiveMaximum?: number
  minLength?: number
  maxLength?: number
  minItems?: number
}

type Content = Record<string, { schema?: JsonSchema }>

export interface Operation {
  method: string
  path: string
  parameters: readonly { name: string; in: string; required?: boolean; schema: JsonSchema }[]
  body: { type: string; schema: JsonSchema } | null
  /** Only workers call this operation, so it is not available in open mode. */
  isForWorkers: boolean
  responses: Readonly<Record<string, { content?: Content }>>
}

interface Described {
  parameters?: Operation['parameters']
  requestBody?: { content: Content }
  responses: Operation['responses']
  security: object[]
}

interface Document {
  paths: Record<string, Record<string, Described>>
  components: { schemas: Record<string, JsonSchema> }
}

/** A server's OpenAPI document, for tests that compare its answers with it. */
export class OpenApi {
  readonly operations: readonly Operation[]
  readonly #schemas: Record<string, JsonSchema>
  /** The same schemas, in the form that `fromJSONSchema` needs. */
  readonly #definitions: Record<string, JsonSchema>
  readonly #checks = new Map<string, z.ZodType>()

  constructor(given: unknown) {
    const document = given as Document
    this.#schemas = document.components.schemas
    this.#definitions = withLocalReferences(this.#schemas)
    this.operations = Object.entries(document.paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, { parameters = [], requestBody, responses, security }]) => {
        const [[type, { schema = {} }] = ['', {}]] = Object.entries(requestBody?.content ?? {})
        const body = type === '' ? null : { type, schema }
        const isForWorkers = security.length > 0 && security.every((scheme) => Object.keys(scheme).length > 0)
        return { method: method.toUpperCase(), path, parameters, body, isForWorkers, responses }
      }),
    )
  }

  find(method: string, path: string): Operation | undefined {
    return this.operations.find((operation) => operation.method === method && operation.path === path)
  }

  readonly resolve = (schema: JsonSchema): JsonSchema => {
    const name = schema.$ref?.split('/').at(-1)
    return name === undefined ? schema : (this.#schemas[name] ?? {})
  }

  /** How an answer differs from its description, or null. */
  problemOf(operation: Operation, status: number, contentType: string, body: Buffer): string | null {
    const described = operation.responses[status]
    if (described === undefined) return `the status ${status} is not described`
    const types = Object.keys(described.content ?? {})
    if (types.length === 0) return null
    const type = types.find((name) => contentType.startsWith(name))
    if (type === undefined) return `the content type ${contentType} is not described`
    const schema = described.content?.[type]?.schema
    if (type !== 'application/json' || schema === undefined) return null
    return this.#mismatch(schema, body.toString('utf8'))
  }

  /** Checks an error that any path may return. */
  errorProblem(form: 'Error' | 'CloudError', body: Buffer): string | null {
    return this.#mismatch(this.#schemas[form] ?? {}, body.toString('utf8'))
  }

  #mismatch(schema: JsonSchema, text: string): string | null {
    const parsed = this.#check(schema).safeParse(JSON.parse(text))
    return parsed.success ? null : z.prettifyError(parsed.error)
  }

  #check(schema: JsonSchema): z.ZodType {
    const text = JSON.stringify(schema)
    const known = this.#checks.get(text)
    if (known !== undefined) return known
    const made = z.fromJSONSchema({ ...withLocalReferences(schema), $defs: this.#definitions } as never)
    this.#checks.set(text, made)
    return made
  }
}

function withLocalReferences<T>(schema: T): T {
  return JSON.parse(JSON.stringify(schema).replaceAll('#/components/schemas/', '#/$defs/')) as T
}
