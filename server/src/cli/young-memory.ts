import { setFlagsFromString } from 'node:v8'

/**
 * V8 doubles the memory of young objects while many of them survive, and all that a start loads survives. An idle server would
 * keep 40 MB that only its start used. So this memory does not grow while a program loads. Later it grows with the load, as
 * ever.
 */
export const youngMemory = {
  hold: () => setFlagsFromString('--semi-space-growth-factor=1'),
  release: () => setFlagsFromString('--semi-space-growth-factor=2'),
}
