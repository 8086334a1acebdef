export { type FileOutboxOptions, fileFlushLock, nodeNetwork, openFileOutbox } from './file-outbox.ts'
export { FileStore, type FileStoreOptions } from './file-store.ts'
