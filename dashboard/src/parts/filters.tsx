import { IchidoError } from '@ichido/sdk/protocol'
import { useEffect, useRef, useState } from 'preact/hooks'
import { useLocation, useSearch } from 'wouter-preact'
import { withQuery } from '../server/call.ts'
import { words } from '../words.ts'
import { durationText, parseDuration } from './durations.ts'

const w = words(
  {
    refused: (field: string, message: string) => `The filter ${field} was refused: ${message}`,
    remove: 'Remove this filter',
    noDuration: 'Write it like 10m, 2h or 1d.',
  },
  {
    refused: (field, message) => `条件 ${field} は使えません: ${message}`,
    remove: 'この条件を外す',
    noDuration: '10m、2h、1d のように入力してください。',
  },
)

/** Typing pauses this long before the list is read again. */
const SETTLED_MS = 250

export type Filters<Name extends string> = Partial<Record<Name, string>>

/** The filters of a list, which are in the URL: a link or a reload shows the same list. */
export function useFilters<Name extends string>(names: readonly Name[]) {
  const search = useSearch()
  const [location, navigate] = useLocation()
  const parameters = new URLSearchParams(search)
  const given = names.flatMap((name) => {
    const value = parameters.get(name)
    return value === null || value === '' ? [] : [[name, value] as const]
  })
  const filters = Object.fromEntries(given) as Filters<Name>
  /** An empty value removes the filter. */
  const change = (changes: Filters<Name>) =>
    navigate(withQuery(location, { ...filters, ...changes }), { replace: true })
  const clear = () => navigate(location, { replace: true })
  return { filters, change, clear, isEmpty: given.length === 0 }
}

interface FilterFieldProps {
  label: string
  value: string | undefined
  onChange(value: string): void
  type?: 'search' | 'datetime-local'
  placeholder?: string
  /** The values to choose from. */
  options?: readonly string[]
  search?: boolean
}

/** A text filter that applies as one types. */
export function FilterField({
  label,
  value = '',
  onChange,
  type = 'search',
  placeholder,
  options,
  search,
}: FilterFieldProps) {
  const [typed, setTyped] = useState(value)
  // Another filter may be chosen before the typing has settled.
  const apply = useRef(onChange)
  apply.current = onChange
  // After a space, more words may follow.
  useEffect(() => setTyped((before) => (before.trim() === value ? before : value)), [value])
  useEffect(() => {
    if (typed.trim() === value) return
    const timer = setTimeout(() => apply.current(typed.trim()), SETTLED_MS)
    return () => clearTimeout(timer)
  }, [typed])
  const list = options === undefined ? undefined : `options-${label.replace(/\W+/g, '-')}`
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type={type}
        value={typed}
        placeholder={placeholder}
        list={list}
        autocomplete="off"
        spellcheck={false}
        data-search={search ? '' : undefined}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
      {options !== undefined && (
        <datalist id={list}>
          {options.map((option) => (
            <option key={option} value={option} />
          ))}
        </datalist>
      )}
    </label>
  )
}

/** A filter by an instant. The URL has it in UTC, and the field shows local time. */
export function TimeFilter({ label, value, onChange }: Pick<FilterFieldProps, 'label' | 'value' | 'onChange'>) {
  return (
    <FilterField
      label={label}
      type="datetime-local"
      value={localTime(value)}
      onChange={(local) => onChange(local === '' ? '' : new Date(local).toISOString())}
    />
  )
}

/** A filter by a duration, such as 10m. The URL has it in seconds, and what is typed stays as it is. */
export function DurationFilter({ label, value, onChange }: Pick<FilterFieldProps, 'label' | 'value' | 'onChange'>) {
  const seconds = value === undefined ? null : Number(value)
  const [typed, setTyped] = useState(seconds === null ? '' : durationText(seconds))
  const read = parseDuration(typed)
  const bad = typed.trim() !== '' && read === null
  useEffect(() => {
    if (seconds !== read) setTyped(seconds === null ? '' : durationText(seconds))
  }, [value])
  useEffect(() => {
    if (bad || read === seconds) return
    const timer = setTimeout(() => onChange(read === null ? '' : String(read)), SETTLED_MS)
    return () => clearTimeout(timer)
  }, [typed])
  return (
    <label class="field">
      <span>{label}</span>
      <input
        type="search"
        value={typed}
        placeholder="10m"
        autocomplete="off"
        spellcheck={false}
        aria-invalid={bad}
        onInput={(event) => setTyped(event.currentTarget.value)}
      />
      {bad && <small class="problem">{w().noDuration}</small>}
    </label>
  )
}

/** An instant in the form that the browser's field takes: local, without a zone. */
export function localTime(iso: string | undefined): string {
  const ms = iso === undefined ? Number.NaN : Date.parse(iso)
  if (Number.isNaN(ms)) return ''
  const offsetMs = new Date(ms).getTimezoneOffset() * 60_000
  return new Date(ms - offsetMs).toISOString().slice(0, 16)
}

interface RefusedFilterProps<Name extends string> {
  names: readonly Name[]
  error: Error | null
  change(changes: Filters<Name>): void
}

/** The server names the filter that it refuses. The other filters stay. */
export function RefusedFilter<Name extends string>({ names, error, change }: RefusedFilterProps<Name>) {
  if (!(error instanceof IchidoError)) return null
  const name = names.find((known) => known === error.details?.field)
  if (name === undefined) return null
  return (
    <p class="trouble" role="alert">
      {w().refused(name, error.message)}
      <button type="button" class="quiet" onClick={() => change({ [name]: '' } as Filters<Name>)}>
        {w().remove}
      </button>
    </p>
  )
}
