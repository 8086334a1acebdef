import { mkdtempSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { findProgram } from './debian.ts'
import { shortTmp } from './find.ts'
import { onFreePort } from './free-port.ts'
import { ServerProcess } from './server-process.ts'

export type Nginx = {
  /** The address of nginx. */
  url: string
  stop(): Promise<void>
}

/** Starts an nginx that forwards every request to the target, with extra directives of the test. It ends with this process. */
export async function startNginx(target: string, directives = ''): Promise<Nginx> {
  const { path, env } = await findProgram({
    title: 'nginx',
    variable: 'NGINX',
    names: ['nginx'],
    package: 'nginx',
    packages: ['nginx'],
    program: 'usr/sbin/nginx',
    advice: 'Install nginx, or set NGINX to the path of `nginx`.',
  })
  const folder = mkdtempSync(join(shortTmp(), 'ichido-nginx-'))
  const server = new ServerProcess(folder)
  const ready = (_: number, log: () => string) => /start worker process|nginx\/[\d.]+/.test(log())
  try {
    return await onFreePort(async (port) => {
      writeFileSync(join(folder, 'nginx.conf'), configuration(port, target, directives))
      const args = ['-p', folder, '-c', 'nginx.conf', '-e', 'stderr']
      await server.start({ command: path, args, env, ready })
      return handle(server, port)
    })
  } catch (error) {
    await server.release()
    throw error
  }
}

function configuration(port: number, target: string, directives: string): string {
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'].map((name) => `${name}_temp_path ${name};`)
  return `daemon off;
master_process off;
pid pid;
error_log stderr notice;
events {}
http {
  access_log off;
  ${temporary.join('\n  ')}
  server {
    listen 127.0.0.1:${port};
    location / {
      proxy_pass ${target};
      ${directives}
    }
  }
}
`
}

function handle(server: ServerProcess, port: number): Nginx {
  return {
    url: `http://127.0.0.1:${port}`,
    stop: async () => {
      await server.end('SIGTERM')
      await server.release()
    },
  }
}
