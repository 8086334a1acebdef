import pg from 'pg'

/** A pool that ends quietly: when the database is dropped after it, a connection may still be on its way out. */
export function openPool(url: string, max = 4): pg.Pool {
  return new pg.Pool({ connectionString: url, max }).on('error', () => {})
}
