/** Text of at most so many characters, of which the last one says that there was more. No character is cut in half. */
export function clip(text: string, max: number): string {
  return text.length <= max ? text : `${text.slice(0, max - 1).toWellFormed()}…`
}
