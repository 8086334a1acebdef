/** A dead letter is free unless a redrive that still runs has marked it. */
export const FREE = `(d.redrive_id IS NULL OR NOT EXISTS (
  SELECT 1 FROM ichido.operations o WHERE o.id = d.redrive_id AND o.state = 'running'))`
