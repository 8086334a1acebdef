/** Imported first, because a chart formats numbers by this tag as soon as its code is loaded. */
try {
  new Intl.NumberFormat(navigator.language)
} catch {
  // A browser in a POSIX locale, as in many containers, names `en-US@posix`, which is no language tag.
  Object.defineProperty(navigator, 'language', { value: 'en-US' })
}
