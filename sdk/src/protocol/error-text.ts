/** What systems say of an error often begins with its code. */
export function errorText({ code, message }: { code: string; message: string }): string {
  return message.startsWith(`${code}:`) ? message : `${code}: ${message}`
}
