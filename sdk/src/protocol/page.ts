export interface Page<T> {
  data: T[]
  next_cursor: string | null
}
