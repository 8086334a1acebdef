/** The local worker of `npm start` serves only this queue, so that it never takes anybody's job. */
export const DEMO_QUEUE = 'demo'
export const DEMO_KIND = 'demo.hello'
/** Always fails: for looking at what a failure looks like. */
export const DEMO_FAILING_KIND = 'demo.fail'
