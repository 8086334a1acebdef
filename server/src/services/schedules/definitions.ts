import {
  DEFAULT_PRIORITY,
  DEFAULT_QUEUE,
  type DefinitionShape,
  IchidoError,
  type Page,
  type TickShape,
} from '@ichido/sdk/protocol'
import { type DefinitionInput, toContentShape, toSchedule } from '../../contract/definitions.ts'
import { toTriggerRule } from '../../contract/triggers.ts'
import { defaultSeqScope } from '../../core/events/event.ts'
import { errorOf } from '../../core/json/problem.ts'
import type { Caller } from '../../core/limits/roles.ts'
import type { JobPolicy } from '../../core/run/job.ts'
import type { Definition, DefinitionContent } from '../../core/schedule/definition.ts'
import { nextTicks, offsetAt, type Schedule, scheduleProblem } from '../../core/schedule/schedule.ts'
import { templateProblem } from '../../core/schedule/trigger.ts'
import * as store from '../../store/schedules/definitions.ts'
import { readClock } from '../../store/system/leadership.ts'
import { iso, isoOrNull, notFound, renderPage } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { priorityProblem, type UserNames } from '../limits/maximum.ts'
import { payloadText, policyOf } from '../submission/submit-job.ts'

/** The part of a definition that goes into a job that is submitted under its name. */
interface Template {
  definitionId: string
  kind: string
  queue: string | null
  payload: unknown
  policy: JobPolicy
}

export interface DefinitionService {
  find(name: string): Promise<Template | null>
  create(caller: Caller, name: string, input: DefinitionInput): Promise<DefinitionShape>
  get(name: string): Promise<DefinitionShape>
  list(limit: number, after: string | null): Promise<Page<DefinitionShape>>
  /** Replaces it. The change is refused if the definition has another version than the named one. */
  update(caller: Caller, name: string, input: DefinitionInput, version: number | null): Promise<DefinitionShape>
  remove(caller: Caller, name: string): Promise<void>
  pause(caller: Caller, name: string): Promise<DefinitionShape>
  resume(caller: Caller, name: string): Promise<DefinitionShape>
  /** The next ticks of a stored definition; none without a schedule. */
  ticks(name: string, limit: number): Promise<TickShape[]>
  /** The next ticks of a rule. */
  preview(schedule: Schedule, limit: number): Promise<TickShape[]>
}

export function createDefinitionService(deps: Deps, names: UserNames): DefinitionService {
  const { world } = deps
  const by = (caller: Caller) => ({ id: world.uuid(), actor: caller.userId })
  const shown = (name: string, definition: Definition | null) => {
    if (definition === null) throw notFound('definition', name)
    return render(definition)
  }

  /** The names of a definition's jobs count for the user who owns those jobs. */
  async function claimNames(userId: string, { kind, queue, labels, domain }: DefinitionContent): Promise<void> {
    const policy = domain === null ? {} : { domain }
    const [tooMany] = await names.claim([{ userId, kind, queue: queue ?? DEFAULT_QUEUE, labels, policy }])
    if (tooMany === undefined) return
    deps.meter.maximumReached(tooMany.details.setting)
    throw new IchidoError(tooMany.code, tooMany.message, tooMany.details)
  }

  return {
    async find(name) {
      const found = await deps.store.read(store.findDefinition(name))
      if (found === null) return null
      const { id, kind, queue, payload, policy } = found
      return { definitionId: id, kind, queue, payload: JSON.parse(payload) as unknown, policy }
    },

    async create(caller, name, input) {
      const made = { id: world.uuid(), name, userId: caller.userId, content: contentOf(deps, caller, input) }
      await claimNames(caller.userId, made.content)
      const outcome = await deps.store.write(store.createDefinition(made, by(caller)))
      if (outcome.kind === 'problem') throw errorOf(outcome.problem)
      if (outcome.kind === 'created') return render(outcome.definition)
      throw new IchidoError('DEFINITION_EXISTS', taken(name), { field: 'name' })
    },

    get: async (name) => shown(name, await deps.store.read(store.findDefinition(name))),

    async list(limit, after) {
      return renderPage(await deps.store.read(store.listDefinitions(limit, after)), render)
    },

    async update(caller, name, input, version) {
      const content = contentOf(deps, caller, input)
      const { user_id: owner } = shown(name, await deps.store.read(store.findDefinition(name)))
      await claimNames(owner, content)
      const outcome = await deps.store.write(store.updateDefinition(name, version, content, by(caller)))
      if (outcome.kind === 'problem') throw errorOf(outcome.problem)
      if (outcome.kind === 'missing') throw notFound('definition', name)
      if (outcome.kind === 'updated') return render(outcome.definition)
      throw new IchidoError('VERSION_CONFLICT', `The definition ${name} has version ${outcome.version} now`, {
        field: 'version',
        version: outcome.version,
      })
    },

    async remove(caller, name) {
      if (!(await deps.store.write(store.deleteDefinition(name, by(caller))))) throw notFound('definition', name)
    },

    pause: async (caller, name) => shown(name, await deps.store.write(store.pauseDefinition(name, by(caller)))),

    async resume(caller, name) {
      const resumed = await deps.store.write(store.resumeDefinition(name, by(caller)))
      // Triggers may have waited for the end of the pause.
      if (resumed !== null && resumed.on !== null) deps.bus.wake(['triggers'])
      return shown(name, resumed)
    },

    async ticks(name, limit) {
      const { definition, nowMs } = await deps.store.read(store.findDefinitionNow(name))
      if (definition === null) throw notFound('definition', name)
      return definition.schedule === null ? [] : renderTicks(definition.schedule, nowMs, limit)
    },

    async preview(schedule, limit) {
      const nowMs = await deps.store.read(readClock())
      const problem = scheduleProblem(schedule, nowMs)
      if (problem !== null) throw errorOf(problem)
      return renderTicks(schedule, nowMs, limit)
    },
  }
}

function contentOf(deps: Deps, caller: Caller, input: DefinitionInput): DefinitionContent {
  const stages = input.stages ?? null
  const on = input.on == null ? null : toTriggerRule(input.on)
  const problem =
    priorityProblem(deps, caller, input.priority) ?? templateProblem(input.payload, on, input.schedule != null)
  if (problem !== null) throw errorOf(problem)
  return {
    kind: input.kind,
    queue: input.queue ?? null,
    payload: payloadText(deps, input.payload),
    policy: policyOf(input),
    priority: input.priority ?? DEFAULT_PRIORITY,
    labels: input.labels ?? null,
    domain: input.domain ?? null,
    stages,
    seqScope: input.seq_scope ?? defaultSeqScope(stages),
    schedule: input.schedule == null ? null : toSchedule(input.schedule),
    on,
  }
}

const taken = (name: string) => `The definition ${name} already exists; PUT /v1/definitions/${name} changes it`

function render(definition: Definition): DefinitionShape {
  return {
    definition_id: definition.id,
    name: definition.name,
    ...toContentShape(definition),
    paused: definition.pausedAtMs !== null,
    paused_at: isoOrNull(definition.pausedAtMs),
    version: definition.version,
    user_id: definition.userId,
    next_tick_at: definition.pausedAtMs === null ? isoOrNull(definition.nextTickAtMs) : null,
    last_tick_at: isoOrNull(definition.lastTickAtMs),
    created_at: iso(definition.createdAtMs),
    updated_at: iso(definition.updatedAtMs),
  }
}

function renderTicks(schedule: Schedule, nowMs: number, limit: number): TickShape[] {
  return nextTicks(schedule, nowMs, limit).map((tick) => ({
    scheduled_for: iso(tick),
    local_time: localTime(schedule.timeZone, tick),
  }))
}

/** Like 2031-03-30T03:00:00+02:00. */
function localTime(zone: string, instantMs: number): string {
  const offset = offsetAt(zone, instantMs)
  const ahead = new Date(Math.abs(offset)).toISOString().slice(11, 16)
  return `${new Date(instantMs + offset).toISOString().slice(0, 19)}${offset < 0 ? '-' : '+'}${ahead}`
}
