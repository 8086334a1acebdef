/** The one program that an agent is: itself, and the supervisor of each of its runs. */
if (process.argv[2] === 'supervise') {
  const { supervise } = await import('./supervisor.ts')
  supervise()
}

export {}
