export const STOP_SIGNALS = ['SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGUSR2'] as const

/** What a terminal or systemd sends to the whole group comes again from npm, and from the script that npm runs. */
const SAME_SIGNAL_MS = 1_000

export function onStopSignals(stop: () => void, stopAtOnce: () => void): void {
  let firstMs: number | null = null
  const onSignal = () => {
    const nowMs = performance.now()
    if (firstMs === null) {
      firstMs = nowMs
      stop()
    } else if (nowMs - firstMs >= SAME_SIGNAL_MS) stopAtOnce()
  }
  for (const signal of STOP_SIGNALS) process.on(signal, onSignal)
}
