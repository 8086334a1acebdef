import type { IncomingMessage } from 'node:http'
import { IchidoError } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import type { ZodTypeProvider } from 'fastify-type-provider-zod'
import { z } from 'zod'
import { artifact, type UploadQuery, uploadQuery } from '../../contract/artifacts.ts'
import { StoreFull } from '../../core/node/store-errors.ts'
import { parseRange } from '../../core/run/artifact.ts'
import type { FoundArtifact, Reader } from '../../services/artifacts/artifacts.ts'
import { callerOf } from '../auth/auth.ts'
import { attachment } from '../server/headers.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { jobParams, type RouteContext } from './context.ts'

const BYTES = 'application/octet-stream'
/** A sender that sends nothing for this long is disconnected. The bytes that have arrived stay. */
const SILENCE_MS = 60_000

const params = z.object({ artifact_id: z.uuid().toLowerCase() })
const tags = ['artifacts']
const UPLOAD_REFUSALS = [
  'NOT_FOUND',
  'ALREADY_ENDED',
  'LEASE_LOST',
  'ARTIFACT_CONFLICT',
  'UPLOAD_OFFSET_MISMATCH',
  'ARTIFACTS_OFF',
] as const
const STATUS_OF = { ready: 201, repeated: 200, partial: 202 } as const

export async function artifactRoutes(scope: FastifyInstance, { services }: RouteContext): Promise<void> {
  takeBytes(scope)
  const app = scope.withTypeProvider<ZodTypeProvider>()

  app.post(
    '/v1/artifacts',
    {
      config: { ability: 'submit', workersToo: true, streams: true },
      schema: {
        tags,
        summary: 'Send an artifact',
        description:
          'The body is the bytes of the file (`application/octet-stream`). With `job_id`, it is the file that the job ' +
          'lists under this name. A worker sends a file that its run has made with `lease_id`. An interrupted upload ' +
          'continues with `Upload-Offset`, which a `HEAD` of the artifact or a refusal returns.',
        querystring: uploadQuery,
        consumes: [BYTES],
        body: z.unknown().meta({ format: 'binary' }),
        response: answers(
          {
            200: ['The artifact was already here', artifact],
            201: ['The artifact is stored', artifact],
            202: ['This part is stored, up to `Upload-Offset`', artifact],
          },
          ...UPLOAD_REFUSALS,
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const uploaded = await services.artifacts
        .upload(readerOf(request), uploadOf(request, request.query, services.deps.world))
        .catch((error: unknown) => {
          if (error instanceof IchidoError && error.code === 'UPLOAD_OFFSET_MISMATCH') {
            reply.header('upload-offset', String(error.details.upload_offset))
          }
          // Otherwise the rest of the body would be read and dropped.
          const tooLarge = error instanceof IchidoError && error.code === 'PAYLOAD_TOO_LARGE'
          if (tooLarge || error instanceof StoreFull) reply.header('connection', 'close')
          throw error
        })
      if (uploaded.kind === 'cut')
        throw new IchidoError(
          'INVALID_PAYLOAD',
          'The connection broke before the whole body had arrived; send the rest with Upload-Offset',
        )
      reply.header('upload-offset', String(uploaded.receivedBytes))
      return reply.code(STATUS_OF[uploaded.kind]).send(uploaded.artifact)
    },
  )

  app.head(
    '/v1/artifacts/:artifact_id',
    {
      config: { ability: 'readOwn', workersToo: true },
      schema: { hide: true, params },
    },
    async (request, reply) => {
      const { artifact, receivedBytes } = await services.artifacts.progress(
        readerOf(request),
        request.params.artifact_id,
      )
      const ready = artifact.state === 'ready'
      reply.header('upload-offset', String(receivedBytes)).header('upload-complete', ready ? '?1' : '?0')
      if (ready) reply.headers(describe(artifact)).header('content-length', String(artifact.size_bytes))
      return reply.code(200).send()
    },
  )

  app.get(
    '/v1/artifacts/:artifact_id',
    {
      exposeHeadRoute: false,
      config: { ability: 'readOwn', workersToo: true },
      schema: {
        tags,
        summary: 'Fetch an artifact, or a range of its bytes',
        description: 'The owner can read an artifact, and so can the worker that holds a lease of its job.',
        params,
        response: answers(
          { 200: ['The bytes'], 206: ['The bytes of the range'] },
          'NOT_FOUND',
          'ARTIFACT_NOT_READY',
          'RANGE_NOT_SATISFIABLE',
          'ARTIFACTS_OFF',
        ),
      },
    },
    async (request, reply) =>
      sendBytes(request, reply, await services.artifacts.find(readerOf(request), request.params.artifact_id)),
  )

  app.get(
    '/v1/jobs/:job_id/artifacts',
    {
      config: { ability: 'readOwn', workersToo: true, shared: true },
      schema: {
        tags,
        summary: 'List the artifacts that a job waits for, was given and has made',
        params: jobParams,
        response: answers({ 200: ['The artifacts of the job', z.object({ data: z.array(artifact) })] }, 'NOT_FOUND'),
      },
    },
    async (request) => ({ data: await services.artifacts.ofJob(readerOf(request), request.params.job_id) }),
  )
}

/** The bodies of these routes are streams of bytes, never whole in memory. */
function takeBytes(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers()
  scope.addContentTypeParser(BYTES, (_request, payload, done) => done(null, payload))
  scope.addContentTypeParser('*', (_request, _payload, done) =>
    done(new IchidoError('UNSUPPORTED_MEDIA_TYPE', `Send the bytes as they are, with Content-Type: ${BYTES}`)),
  )
}

function readerOf(request: FastifyRequest): Reader {
  return request.worker === null ? { caller: callerOf(request) } : { workerId: request.worker.workerId }
}

function uploadOf(request: FastifyRequest, query: UploadQuery, world: World) {
  const { headers, raw } = request
  if (headers['content-encoding'] !== undefined) {
    throw new IchidoError('UNSUPPORTED_MEDIA_TYPE', 'Send the body as it is, without Content-Encoding')
  }
  const length = headers['content-length']
  return {
    name: query.name,
    jobId: query.job_id ?? null,
    leaseId: query.lease_id ?? null,
    sha256: query.sha256 ?? null,
    sizeBytes: query.size_bytes ?? null,
    fromByte: offsetOf(headers['upload-offset']),
    contentLength: length === undefined ? null : Number(length),
    source: heard(raw, world),
  }
}

/** The chunks as they come. A silent sender is disconnected. */
async function* heard(raw: IncomingMessage, world: World): AsyncGenerator<Uint8Array> {
  const listen = () => world.after(SILENCE_MS, () => raw.destroy())
  let callOff = listen()
  raw.once('close', () => callOff())
  for await (const chunk of raw.iterator({ destroyOnReturn: false })) {
    callOff()
    yield chunk
    callOff = listen()
  }
}

function offsetOf(header: string | string[] | undefined): number | null {
  if (header === undefined) return null
  if (typeof header === 'string' && /^\d{1,15}$/.test(header)) return Number(header)
  throw new IchidoError('INVALID_PAYLOAD', 'Upload-Offset must be a number of bytes', { field: 'Upload-Offset' })
}

function describe({ name, sha256 }: { name: string; sha256: string | null }): Record<string, string> {
  return {
    'content-type': BYTES,
    'content-disposition': attachment(name),
    'accept-ranges': 'bytes',
    etag: `"${sha256}"`,
  }
}

async function sendBytes(request: FastifyRequest, reply: FastifyReply, found: FoundArtifact): Promise<FastifyReply> {
  const { sizeBytes, sha256 } = found
  const same = [undefined, `"${sha256}"`].includes(request.headers['if-range'] as string | undefined)
  const range = same ? parseRange(request.headers.range, sizeBytes) : null
  if (range === 'unsatisfiable') {
    reply.header('content-range', `bytes */${sizeBytes}`)
    throw new IchidoError('RANGE_NOT_SATISFIABLE')
  }
  const stream = await found.open(range)
  reply.headers(describe(found.artifact))
  if (range === null) return reply.header('content-length', String(sizeBytes)).send(stream)
  return reply
    .code(206)
    .header('content-range', `bytes ${range.first}-${range.last}/${sizeBytes}`)
    .header('content-length', String(range.last - range.first + 1))
    .send(stream)
}
