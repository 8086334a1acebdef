/** How much of something is done or used, as a bar with its numbers in words. */
export function Progress({ done, all, text }: { done: number; all: number; text: string }) {
  return (
    <span class="progress" data-full={all > 0 && done >= all ? '' : undefined}>
      <progress class="bar" value={Math.min(done, all)} max={Math.max(all, 1)} aria-label={text} />
      <span>{text}</span>
    </span>
  )
}
