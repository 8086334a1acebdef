import { compare, type Rule } from './look.ts'

export const lookForLateLoops: Rule = ({ store, loops }) => {
  const late = loops().flatMap(({ name, late }) => (late ? [name] : []))
  const message = (name: string) => `The loop ${name} of the leader has not finished a tick for five of its intervals`
  return compare(store, 'loop_late', new Map(late.map((name) => [name, message(name)])))
}
