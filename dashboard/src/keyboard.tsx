import { useEffect } from 'preact/hooks'
import { Dialog } from './parts/dialog.tsx'
import { words } from './words.ts'

const w = words(
  {
    title: 'Keyboard shortcuts',
    search: 'Go to the search field',
    down: 'Next row',
    up: 'Previous row',
    open: 'Open the row',
    help: 'Show this help',
    close: 'Close a window',
    done: 'Close',
  },
  {
    title: 'キーボード操作',
    search: '検索欄へ移動',
    down: '次の行',
    up: '前の行',
    open: '行を開く',
    help: 'この一覧を表示',
    close: 'ウィンドウを閉じる',
    done: '閉じる',
  },
)

/** A row of a list marks its link with `data-row`, and a page marks its search field with `data-search`. */
export function useKeyboard(onHelp: () => void): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return
      if (event.target instanceof HTMLElement && event.target.closest('input, select, textarea, dialog')) return
      const act = { '/': focusSearch, j: () => moveRow(1), k: () => moveRow(-1), '?': onHelp }[event.key]
      if (act === undefined) return
      event.preventDefault()
      act()
    }
    addEventListener('keydown', listen)
    return () => removeEventListener('keydown', listen)
  }, [onHelp])
}

function focusSearch(): void {
  document.querySelector<HTMLInputElement>('[data-search]')?.focus()
}

function moveRow(by: 1 | -1): void {
  const rows: (Element | null)[] = [...document.querySelectorAll('[data-row]')]
  const at = rows.indexOf(document.activeElement)
  const next = at === -1 && by === -1 ? rows.length - 1 : at + by
  const row = rows[Math.min(Math.max(next, 0), rows.length - 1)]
  if (row instanceof HTMLElement) row.focus()
}

export function KeyboardHelp({ onClose }: { onClose(): void }) {
  const rows: [string, string][] = [
    ['/', w().search],
    ['j', w().down],
    ['k', w().up],
    ['Enter', w().open],
    ['?', w().help],
    ['Esc', w().close],
  ]
  return (
    <Dialog title={w().title} onClose={onClose}>
      <form method="dialog">
        <h2>{w().title}</h2>
        <dl class="facts">
          {rows.map(([key, meaning]) => (
            <>
              <dt>
                <kbd>{key}</kbd>
              </dt>
              <dd>{meaning}</dd>
            </>
          ))}
        </dl>
        <p class="ends">
          <button type="submit" class="quiet">
            {w().done}
          </button>
        </p>
      </form>
    </Dialog>
  )
}
