import { ERRORS, type IchidoError } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { answersWith } from '../../server/openapi.ts'

/**
 * Errors below `/api/cloud`. S0's clients read `success` and `error`, and SimpleTuner's own CLI reads `detail`; each prints
 * what it finds, so both are the sentence. What the native form has besides stands beside them.
 */
export const cloudError = z
  .object({
    success: z.literal(false),
    error: z.string(),
    detail: z.string().meta({ description: 'The same as `error`' }),
    code: z.enum(Object.keys(ERRORS) as [keyof typeof ERRORS]),
    details: z.record(z.string(), z.unknown()),
    request_id: z.string(),
  })
  .meta({ id: 'CloudError' })

export type CloudError = z.output<typeof cloudError>

export function cloudErrorBody({ code, message, details }: IchidoError, requestId: string): CloudError {
  return { success: false, error: message, detail: message, code, details, request_id: requestId }
}

type Answers = Parameters<typeof answersWith> extends [z.ZodType, ...infer Rest] ? Rest : never

export const cloudAnswers = (...answers: Answers) => answersWith(cloudError, ...answers)
