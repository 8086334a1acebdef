export function builtDashboard(): Promise<string>
export function bundleDashboard(outDir: string): Promise<void>
