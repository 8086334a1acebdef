import { compare, type Rule } from './look.ts'

/** A disk that swings around the threshold has one alert: it closes when so much less is used. */
const CALM_PERCENT = 2

/** The disks of the node that leads. */
export const lookAtDisks: Rule = async ({ store, settings, disks }) => {
  const threshold = settings.get('alert_disk_nearly_full_threshold_percent')
  const used = ((await disks?.()) ?? []).map(({ folder, freeRatio }) => ({ folder, percent: (1 - freeRatio) * 100 }))
  const full = used
    .filter(({ percent }) => percent > threshold)
    .map(({ folder, percent }) => {
      const message = `The disk of ${folder} is ${Math.floor(percent)} % full, more than ${threshold} %. Free space, or shorten the retention times`
      return [folder, message] as const
    })
  const unsure = used.filter(({ percent }) => percent > threshold - CALM_PERCENT).map(({ folder }) => folder)
  return compare(store, 'disk_nearly_full', new Map(full), new Set(unsure))
}
