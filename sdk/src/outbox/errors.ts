/** The outbox cannot be opened or written; nothing was stored. The message says why and what to do. */
export class OutboxUnavailable extends Error {
  override readonly name = 'OutboxUnavailable'
}

/** The outbox has no room for another item; nothing was stored. */
export class OutboxFull extends Error {
  override readonly name = 'OutboxFull'
}

/** The outbox was written by a newer version; nothing was read or changed. */
export class OutboxTooNew extends Error {
  override readonly name = 'OutboxTooNew'
}

export class NoSuchItem extends Error {
  override readonly name = 'NoSuchItem'

  constructor(id: string) {
    super(`There is no item ${id} in the outbox; it was sent, was dropped, or never existed`)
  }
}

/** The key names an item that is already stored with another body. */
export class KeyKept extends Error {
  override readonly name = 'KeyKept'

  constructor(key: string) {
    super(`The key ${key} is already in the outbox with another body; use a new key, or drop that item first`)
  }
}

export class OutboxClosed extends Error {
  override readonly name = 'OutboxClosed'

  constructor() {
    super('The outbox was closed')
  }
}
