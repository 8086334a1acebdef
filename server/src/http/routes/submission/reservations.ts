import { z } from 'zod'
import { newReservation, page, reservation } from '../../../contract/common/shapes.ts'
import { consumeRequest, listReservationsQuery, reserveRequest } from '../../../contract/quotas.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers, WITH_BODY } from '../../server/openapi.ts'
import { type ApiInstance, cursorIn, cursorOut, type RouteContext } from '../context.ts'

const LIST = 'reservations'
const tags = ['reservations']
const params = z.object({ reservation_id: z.uuid().toLowerCase() })

export function reservationRoutes(app: ApiInstance, { services }: RouteContext): void {
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
      const { user_id: userId = null, active: activeOnly = false, limit, cursor } = request.query
      const filter = { userId, activeOnly, limit, cursor: cursorIn(LIST, cursor) }
      return cursorOut(LIST, await services.reservations.list(callerOf(request), filter))
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
