import { main } from '../program.ts'

const text = { stdout: '', stderr: '' }

for (const name of ['stdout', 'stderr'] as const) {
  process[name].write = (part: string | Uint8Array) => {
    text[name] += String(part)
    return true
  }
}

process.on('message', async ({ args, env }: { args: string[]; env: Record<string, string> }) => {
  for (const name in process.env) delete process.env[name]
  Object.assign(process.env, env)
  const code = await main(args)
  process.send?.({ code, ...text })
  text.stdout = ''
  text.stderr = ''
})
