export const root: string
export const cacheDir: string
export function cached(name: string, text: string, fill: (folder: string) => Promise<void>): Promise<string>
export function fetchPackages(options: {
  what: string
  sets: string[]
  prepare?: (folder: string) => Promise<void>
}): Promise<string>
