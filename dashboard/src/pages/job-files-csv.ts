/** The cells of a table as text. A cell in quotes may contain separators, line breaks and doubled quotes. */
export function rowsOf(text: string, separator: string): string[][] {
  const rows: string[][] = []
  let row: string[] = []
  let cell = ''
  let quoted = false
  const endCell = () => {
    row.push(cell)
    cell = ''
  }
  const endRow = () => {
    endCell()
    if (row.length > 1 || row[0] !== '') rows.push(row)
    row = []
  }
  // A mark of the byte order is no part of the first cell.
  const all = text.replace(/^\uFEFF/, '').replaceAll('\r\n', '\n')
  for (let i = 0; i < all.length; i++) {
    const char = all.charAt(i)
    if (quoted && char === '"' && all.charAt(i + 1) === '"') cell += all.charAt(++i)
    else if (quoted && char === '"') quoted = false
    else if (quoted) cell += char
    else if (char === '"' && cell === '') quoted = true
    else if (char === separator) endCell()
    else if (char === '\n') endRow()
    else cell += char
  }
  if (cell !== '' || row.length > 0) endRow()
  return rows
}
