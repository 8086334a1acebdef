import type { BackupShape } from '@ichido/sdk/protocol'
import { z } from 'zod'

export const backup = z
  .object({
    name: z.string().meta({ description: 'The name of the file in `DATA_DIR/backups`' }),
    rows: z.int(),
    bytes: z.int(),
  })
  .meta({ id: 'Backup' }) satisfies z.ZodType<BackupShape>
