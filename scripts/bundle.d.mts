export const ENTRIES: readonly string[]
export function bundleLibrary(outDir: string, dependencies: readonly string[]): Promise<Map<string, string>>
export function bundleAgent(): Promise<string>
