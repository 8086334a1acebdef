import { backup } from '../../../contract/backups.ts'
import { callerOf } from '../../auth/auth.ts'
import { answers } from '../../server/openapi.ts'
import type { ApiInstance, RouteContext } from '../context.ts'

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
