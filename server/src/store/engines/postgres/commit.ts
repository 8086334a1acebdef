import type pg from 'pg'
import { WITHIN } from './servers.ts'

/**
 * PostgreSQL committed and warned about it. When a statement timeout or `pg_cancel_backend` ends the wait for a synchronous
 * standby, the transaction is committed on the primary alone, and a promoted standby may not have it.
 */
export class CommitDoubted extends Error {
  override readonly name = 'CommitDoubted'
}

const NO_WARNING = '00000'

/**
 * Runs a statement that commits, and rejects if PostgreSQL answers it with a warning. A canceled wait has no SQLSTATE of its own,
 * and both its text and its severity are translated. So every warning during a commit counts. A harmless one costs another try.
 */
export async function committing<T>(client: pg.ClientBase, commit: () => Promise<T>): Promise<T> {
  const warnings: string[] = []
  const hear = ({ code, message }: { code?: string | undefined; message?: string | undefined }) => {
    if (code !== NO_WARNING) warnings.push(message ?? String(code))
  }
  client.on('notice', hear)
  try {
    const answer = await commit()
    if (warnings.length > 0) throw new CommitDoubted(`PostgreSQL committed with a warning: ${warnings.at(-1)}`)
    return answer
  } finally {
    client.off('notice', hear)
  }
}

/**
 * A COMMIT waits for the standby only if its transaction wrote something. A repeat finds its rows, writes nothing, and would be
 * acknowledged before the rows are on the standby. This record makes its COMMIT wait for everything before it.
 */
const WRITE_SOMETHING = `SELECT pg_logical_emit_message(true, 'ichido', '')
  WHERE pg_current_xact_id_if_assigned() IS NULL AND current_setting('synchronous_standby_names') <> ''`

/** `again`: a statement of its own writes the record, so that a warning about it does not count as one about the COMMIT. */
export async function commitTransaction(client: pg.ClientBase, again: boolean): Promise<void> {
  const run = (text: string) => client.query<never>({ text, ...WITHIN } as pg.QueryConfig)
  if (again) await run(WRITE_SOMETHING)
  await committing(client, () => run(again ? 'COMMIT' : `${WRITE_SOMETHING}; COMMIT`))
}
