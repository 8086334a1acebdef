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
        summary: 'Back up the embedded store while it works',
        description:
          'Writes a file into `DATA_DIR/backups` on the server, and removes the oldest beyond `backups_kept`. 404 where the jobs are in PostgreSQL.',
        response: answers({ 201: ['The file', backup] }, 'NOT_FOUND'),
      },
    },
    async (request, reply) => reply.code(201).send(await backups.create(callerOf(request))),
  )
}
