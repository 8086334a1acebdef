import { signal } from '@preact/signals'

export const THEMES = ['system', 'light', 'dark'] as const
export type Theme = (typeof THEMES)[number]

const STORED = 'ichido.theme'

export const theme = signal<Theme>(THEMES.find((name) => name === localStorage.getItem(STORED)) ?? 'system')

// The style sheet chooses the colours by this attribute. The policy of the page allows no style attributes in markup.
theme.subscribe((chosen) => {
  document.documentElement.dataset.theme = chosen
})

export function chooseTheme(chosen: Theme): void {
  localStorage.setItem(STORED, chosen)
  theme.value = chosen
}
