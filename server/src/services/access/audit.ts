import { type AuditShape, IchidoError, type Page } from '@ichido/sdk/protocol'
import { type Caller, can } from '../../core/limits/roles.ts'
import { type AuditEntry, type AuditFilter, listAudit } from '../../store/access/audit.ts'
import type { Deps } from '../deps.ts'
import { iso } from '../iso.ts'

/** Entries are written by the commands that make the changes; here they are only read. */
export interface AuditService {
  list(caller: Caller, filter: AuditFilter, limit: number, cursor: string | null): Promise<Page<AuditShape>>
}

export function createAuditService({ store }: Deps): AuditService {
  return {
    async list(caller, filter, limit, cursor) {
      if (!can(caller, 'operate')) throw new IchidoError('FORBIDDEN')
      const { rows, next } = await store.read(listAudit(filter, limit, cursor))
      return { data: rows.map(render), next_cursor: next }
    },
  }
}

function render({ auditId, createdAtMs, ...entry }: AuditEntry): AuditShape {
  return { audit_id: auditId, ...entry, created_at: iso(createdAtMs) }
}
