/** A failure the reader can act on: its message is the whole output, without a stack. */
export class Trouble extends Error {
  name = 'Trouble'
}
