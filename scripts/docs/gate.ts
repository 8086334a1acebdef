// The TypeScript blocks of a page are one module. It waits before each block until the page has reached that block.

const gates = new Map<string, { reached: PromiseWithResolvers<void>; opened: PromiseWithResolvers<void> }>()

function gate(at: string) {
  const found = gates.get(at) ?? { reached: Promise.withResolvers<void>(), opened: Promise.withResolvers<void>() }
  gates.set(at, found)
  return found
}

/** Modules call this when a block begins. */
export function begin(at: string): Promise<void> {
  gate(at).reached.resolve()
  return gate(at).opened.promise
}

export const reached = (at: string): Promise<void> => gate(at).reached.promise
export const open = (at: string): void => gate(at).opened.resolve()
