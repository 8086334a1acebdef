import pg from 'pg'

/** A PostgreSQL whose clock, as seen by our statements, is set by the test. */
export interface ShiftedClock {
  pool: pg.Pool
  shift(ms: number): Promise<void>
}

const CLOCK = /\bclock_timestamp\(\)/g

type Query = (config: pg.QueryConfig | string, ...rest: unknown[]) => unknown

/** Every statement gets the time from a database function instead of the system clock. */
class ShiftedClient extends pg.Client {
  constructor(config?: pg.ClientConfig) {
    super(config)
    const query = this.query.bind(this) as Query
    const shifted: Query = (config, ...rest) =>
      query(
        typeof config === 'string' ? config : { ...config, text: config.text.replace(CLOCK, 'public.shifted_clock()') },
        ...rest,
      )
    this.query = shifted as typeof this.query
  }
}

/** A pool for another node on a database with a shifted clock. */
export function shiftedPool(url: string): pg.Pool {
  const options: pg.PoolConfig & { Client: typeof pg.Client } = {
    connectionString: url,
    max: 10,
    Client: ShiftedClient,
  }
  const pool = new pg.Pool(options)
  pool.on('error', () => {})
  return pool
}

export async function shiftedClock(url: string): Promise<ShiftedClock> {
  const pool = shiftedPool(url)
  await pool.query(`CREATE TABLE public.shift (ms float8 NOT NULL); INSERT INTO public.shift VALUES (0);
    CREATE FUNCTION public.shifted_clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS
      $$ SELECT clock_timestamp() + make_interval(secs => ms / 1000) FROM public.shift $$`)
  return {
    pool,
    async shift(ms) {
      await pool.query('UPDATE public.shift SET ms = ms + $1', [ms])
    },
  }
}
