// The names that code fragments of pages use without defining them.
import { defineKind } from 'ichido'
import pg from 'pg'
import { z } from 'zod'

/** The address of the page's control plane. */
export let url = ''
export const token: string | undefined = undefined

export let databaseUrl = ''
/** A database with a table `orders`. */
export let pool: pg.Pool

export const id = '4711'
export const orderId = 4711
export const resize = defineKind('resize', {
  payload: z.object({ url: z.url(), width: z.int() }),
  result: z.object({ bytes: z.int() }),
  queue: 'media',
})

export function give(page: { url: string; databaseUrl: string }): void {
  url = page.url
  databaseUrl = page.databaseUrl
  pool = new pg.Pool({ connectionString: databaseUrl })
}
