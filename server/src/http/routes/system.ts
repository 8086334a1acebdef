import { z } from 'zod'
import { page } from '../../contract/common.ts'
import {
  alert,
  backup,
  listAlertsQuery,
  putSettingRequest,
  setting,
  settingParams,
  system,
} from '../../contract/system.ts'
import { callerOf } from '../auth/auth.ts'
import { rationedRead } from '../metrics/store-check.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'

const tags = ['settings']
const params = settingParams

export function settingRoutes(app: ApiInstance, { services: { settings } }: RouteContext): void {
  app.get(
    '/v1/settings',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags,
        summary: 'List the settings in force on this node',
        response: answers({ 200: ['All settings', z.object({ data: z.array(setting), next_cursor: z.null() })] }),
      },
    },
    async () => ({ data: await settings.list(), next_cursor: null }),
  )

  app.get(
    '/v1/settings/:name',
    {
      config: { ability: 'readAll' },
      schema: {
        tags,
        summary: 'Show a setting',
        params,
        response: answers({ 200: ['The setting', setting] }, 'NOT_FOUND'),
      },
    },
    (request) => settings.show(request.params.name),
  )

  app.put(
    '/v1/settings/:name',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: 'Change a setting',
        description: 'Every node uses the new value within a moment, without a restart.',
        params,
        body: putSettingRequest,
        response: answers({ 200: ['The setting', setting] }, 'NOT_FOUND', 'SETTING_FIXED', ...WITH_BODY),
      },
    },
    (request) => settings.put(callerOf(request), request.params.name, request.body.value),
  )

  app.delete(
    '/v1/settings/:name',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: 'Reset a setting to its default',
        params,
        response: answers({ 200: ['The setting', setting] }, 'NOT_FOUND', 'SETTING_FIXED'),
      },
    },
    (request) => settings.reset(callerOf(request), request.params.name),
  )
}

/** The size of the store is not read more often than the gauges of the metrics. */
export function systemRoutes(app: ApiInstance, { services, world }: RouteContext, version: string): void {
  const read = rationedRead(world, () => services.system.read())
  app.get(
    '/v1/system',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags: ['health'],
        summary: 'Show the node that answers, its loops, its store, and the leader',
        response: answers({ 200: ['The system, as this node sees it', system] }),
      },
    },
    async () => {
      const { node, ...rest } = await read()
      return { node: { ...node, version, node_version: process.versions.node }, ...rest }
    },
  )
}

export function backupRoutes(app: ApiInstance, { services: { backups } }: RouteContext): void {
  app.post(
    '/v1/backups',
    {
      config: { ability: 'administer' },
      schema: {
        tags: ['settings'],
        summary: 'Back up the embedded store while it runs',
        description:
          'Writes a file into `DATA_DIR/backups` on the server, and removes the oldest files beyond `backups_kept`. With PostgreSQL the answer is 404.',
        response: answers({ 201: ['The file', backup] }, 'NOT_FOUND'),
      },
    },
    async (request, reply) => reply.code(201).send(await backups.create(callerOf(request))),
  )
}

export function alertRoutes(app: ApiInstance, { services }: RouteContext): void {
  app.get(
    '/v1/alerts',
    {
      config: { ability: 'readAll', shared: true },
      schema: {
        tags: ['alerts'],
        summary: 'List the open alerts, newest first',
        querystring: listAlertsQuery,
        response: answers({ 200: ['A page of alerts', page(alert)] }),
      },
    },
    async (request) => {
      const { all = false, rule = null } = request.query
      return listPage('alerts', request.query, (limit, after) => services.alerts.list({ all, rule }, limit, after))
    },
  )
}
