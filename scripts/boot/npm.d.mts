export function npmCommand(): [command: string, ...args: string[]]
export function runNpm(args: string[], cwd: string): Promise<void>
