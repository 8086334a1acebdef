/** A failure that the user can act on: the message is printed without a stack. */
export class Trouble extends Error {
  name = 'Trouble'
}
