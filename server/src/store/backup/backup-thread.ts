import { parentPort, workerData } from 'node:worker_threads'
import { type BackupOrder, backupBeside } from './backup-beside.ts'

/** Runs in a thread of its own: to copy and to read back takes seconds, in which the node must go on. */
parentPort?.postMessage(backupBeside(workerData as BackupOrder))
