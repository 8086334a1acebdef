import type { ReservationShape } from '@ichido/sdk/protocol'
import { useState } from 'preact/hooks'
import { ActionDialog, notify } from '../parts/dialog.tsx'
import { More, usePages } from '../parts/pages.tsx'
import { Age, formatDuration, nowMs } from '../parts/text.tsx'
import { send } from '../server/call.ts'
import { readAgain } from '../server/queries.ts'
import { useMayChange } from '../server/session.ts'
import { words } from '../words.ts'

const w = words(
  {
    title: 'Reservations',
    caption: 'Reservations that hold a slot, newest first',
    reservation: 'Reservation',
    user: 'User',
    age: 'Held for',
    ends: 'Ends in',
    release: 'Release',
    of: (id: string) => `Release the reservation ${id}`,
    willRelease: (user: string) =>
      `The slot is free at once. If ${user} still submits a job with this reservation, the job is refused.`,
    released: 'The slot is free.',
  },
  {
    title: '予約',
    caption: '枠を確保中の予約(新しい順)',
    reservation: '予約',
    user: 'ユーザー',
    age: '経過',
    ends: '残り',
    release: '解放',
    of: (id) => `予約 ${id} を解放`,
    willRelease: (user) => `枠はすぐに空きます。${user} がこの予約でジョブを投入しても受け付けられません。`,
    released: '枠を解放しました。',
  },
)

/** The part of an id after its time. */
const shortReservation = (id: string): string => id.slice(-12)

/** The slots that are held for jobs that have not come yet. */
export function Reservations() {
  const list = usePages<ReservationShape>('/v1/reservations', { active: true })
  const [releasing, release] = useState<ReservationShape | null>(null)
  const rows = list.data ?? []
  if (rows.length === 0) return null
  return (
    <section aria-label={w().title} class="stack">
      <div class="head">
        <h2>{w().title}</h2>
      </div>
      <div class="card list">
        <table>
          <caption class="unseen">{w().caption}</caption>
          <thead>
            <tr>
              <th scope="col">{w().reservation}</th>
              <th scope="col">{w().user}</th>
              <th scope="col" class="number medium">
                {w().age}
              </th>
              <th scope="col" class="number">
                {w().ends}
              </th>
              <th scope="col">
                <span class="unseen">{w().release}</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <Row key={row.reservation_id} row={row} release={() => release(row)} />
            ))}
          </tbody>
        </table>
        <More of={list.pages} />
      </div>
      {releasing !== null && <ReleaseDialog reservation={releasing} onClose={() => release(null)} />}
    </section>
  )
}

function Row({ row, release }: { row: ReservationShape; release(): void }) {
  const mayRelease = useMayChange(row.user_id)
  return (
    <tr data-id={row.reservation_id}>
      <td title={row.reservation_id}>
        <code>{shortReservation(row.reservation_id)}</code>
      </td>
      <td>{row.user_id}</td>
      <td class="number medium">
        <Age of={row.created_at} />
      </td>
      <td class="number">{formatDuration(Math.max(0, Date.parse(row.expires_at) - nowMs.value), 1)}</td>
      <td class="number">
        {mayRelease && (
          <button
            type="button"
            class="quiet"
            aria-label={w().of(shortReservation(row.reservation_id))}
            onClick={release}
          >
            {w().release}
          </button>
        )}
      </td>
    </tr>
  )
}

interface ReleaseDialogProps {
  reservation: ReservationShape
  onClose(): void
}

function ReleaseDialog({ reservation: { reservation_id, user_id }, onClose }: ReleaseDialogProps) {
  const run = async () => {
    await send('POST', `/v1/reservations/${reservation_id}/release`)
    notify(w().released)
    void readAgain()
  }
  return (
    <ActionDialog title={w().of(shortReservation(reservation_id))} action={w().release} run={run} onClose={onClose}>
      <p>{w().willRelease(user_id)}</p>
    </ActionDialog>
  )
}
