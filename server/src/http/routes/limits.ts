import { z } from 'zod'
import { page, uuid } from '../../contract/common.ts'
import {
  consumeRequest,
  listReservationsQuery,
  newReservation,
  putQuotaRequest,
  quota,
  quotaUser,
  reservation,
  reserveRequest,
} from '../../contract/limits.ts'
import { callerOf } from '../auth/auth.ts'
import { answers, WITH_BODY } from '../server/openapi.ts'
import { type ApiInstance, listPage, type RouteContext } from './context.ts'

export function quotaRoutes(app: ApiInstance, { services }: RouteContext): void {
  const tags = ['quotas']
  const params = z.object({
    user_id: quotaUser.meta({ description: '`*` stands for every user without own limits' }),
  })

  app.get(
    '/v1/quotas/:user_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: "Show a user's limits and their use",
        params,
        response: answers({ 200: ['Limits and use', quota] }, 'NOT_FOUND'),
      },
    },
    (request) => services.quotas.get(callerOf(request), request.params.user_id),
  )

  app.put(
    '/v1/quotas/:user_id',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: "Set a user's limits; a limit that is left out is removed",
        params,
        body: putQuotaRequest,
        response: answers({ 200: ['Limits and use', quota] }, 'NOT_FOUND', ...WITH_BODY),
      },
    },
    (request) => services.quotas.put(callerOf(request), request.params.user_id, request.body),
  )

  app.delete(
    '/v1/quotas/:user_id',
    {
      config: { ability: 'administer' },
      schema: {
        tags,
        summary: "Remove a user's limits; those of `*` apply again",
        params,
        response: answers({ 200: ['Limits and use', quota] }, 'NOT_FOUND'),
      },
    },
    (request) => services.quotas.clear(callerOf(request), request.params.user_id),
  )
}

export function reservationRoutes(app: ApiInstance, { services }: RouteContext): void {
  const tags = ['reservations']
  const params = z.object({ reservation_id: uuid })

  app.post(
    '/v1/reservations',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Reserve a slot of the quota',
        body: reserveRequest,
        response: answers(
          { 201: ['The slot is held', newReservation] },
          'QUOTA_EXCEEDED',
          'RESERVATION_NOT_ACTIVE',
          'NOT_FOUND',
          ...WITH_BODY,
        ),
      },
    },
    async (request, reply) => {
      const { ttl_seconds, reservation_id } = request.body
      return reply.code(201).send(await services.reservations.reserve(callerOf(request), ttl_seconds, reservation_id))
    },
  )

  app.get(
    '/v1/reservations',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'List reservations, newest first',
        querystring: listReservationsQuery,
        response: answers({ 200: ['A page of reservations', page(reservation)] }),
      },
    },
    async (request) => {
      const { user_id: userId = null, active: activeOnly = false } = request.query
      return listPage('reservations', request.query, (limit, cursor) =>
        services.reservations.list(callerOf(request), { userId, activeOnly, limit, cursor }),
      )
    },
  )

  app.get(
    '/v1/reservations/:reservation_id',
    {
      config: { ability: 'readOwn' },
      schema: {
        tags,
        summary: 'Show a reservation',
        params,
        response: answers({ 200: ['The reservation', reservation] }, 'NOT_FOUND'),
      },
    },
    (request) => services.reservations.get(callerOf(request), request.params.reservation_id),
  )

  app.post(
    '/v1/reservations/:reservation_id/consume',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Use a reservation for an existing job of the caller',
        params,
        body: consumeRequest,
        response: answers(
          { 200: ['The reservation, consumed', reservation] },
          'NOT_FOUND',
          'RESERVATION_NOT_ACTIVE',
          ...WITH_BODY,
        ),
      },
    },
    (request) => services.reservations.consume(callerOf(request), request.params.reservation_id, request.body.job_id),
  )

  app.post(
    '/v1/reservations/:reservation_id/release',
    {
      config: { ability: 'submit' },
      schema: {
        tags,
        summary: 'Give a reserved slot back',
        params,
        response: answers({ 200: ['The reservation, released', reservation] }, 'NOT_FOUND', 'RESERVATION_NOT_ACTIVE'),
      },
    },
    (request) => services.reservations.release(callerOf(request), request.params.reservation_id),
  )
}
