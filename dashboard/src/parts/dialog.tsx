import { signal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { words } from '../words.ts'
import { messageOf } from './loaded.tsx'

const w = words({ cancel: 'Back', working: 'Working…' }, { cancel: '戻る', working: '処理中…' })

interface DialogProps {
  title: string
  onClose(): void
  children: ComponentChildren
}

/** A modal window. Escape closes it, and the focus returns to where it was. */
export function Dialog({ title, onClose, children }: DialogProps) {
  const ref = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    ref.current?.showModal()
  }, [])
  return (
    <dialog ref={ref} aria-label={title} onClose={onClose}>
      {children}
    </dialog>
  )
}

interface ActionDialogProps {
  title: string
  /** The words of the button that acts. */
  action: string
  danger?: boolean
  /** Without it, the button can always be pressed. */
  ready?: boolean
  run(): Promise<unknown>
  onClose(): void
  children?: ComponentChildren
}

/** Says what will happen, acts, and shows why it was refused. */
export function ActionDialog({
  title,
  action,
  danger = false,
  ready = true,
  run,
  onClose,
  children,
}: ActionDialogProps) {
  const [working, setWorking] = useState(false)
  const [problem, setProblem] = useState<string | null>(null)
  const submit = async (event: Event) => {
    event.preventDefault()
    setWorking(true)
    setProblem(null)
    try {
      await run()
      onClose()
    } catch (error) {
      setProblem(messageOf(error))
      setWorking(false)
    }
  }
  return (
    <Dialog title={title} onClose={onClose}>
      <form onSubmit={submit}>
        <h2>{title}</h2>
        {children}
        {problem !== null && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <p class="ends">
          <button type="button" class="quiet" onClick={onClose}>
            {w().cancel}
          </button>
          <button type="submit" class={danger ? 'danger' : 'main'} disabled={working || !ready}>
            {working ? w().working : action}
          </button>
        </p>
      </form>
    </Dialog>
  )
}

const TOAST_MS = 6_000
const toast = signal<string | null>(null)
let hide: ReturnType<typeof setTimeout> | undefined

/** Tells that something was done. Screen readers hear it. */
export function notify(text: string): void {
  toast.value = text
  clearTimeout(hide)
  hide = setTimeout(() => {
    toast.value = null
  }, TOAST_MS)
}

export function Toast() {
  return <div role="status">{toast.value !== null && <p class="toast">{toast.value}</p>}</div>
}
