/** A file that a job waits for. */
export interface AwaitedArtifactShape {
  name: string
  sha256?: string | undefined
  size_bytes?: number | undefined
}

export interface ArtifactShape {
  artifact_id: string
  job_id: string | null
  /** The run that made it; null for an input of the job. */
  run_id: string | null
  name: string
  sha256: string | null
  size_bytes: number | null
  state: 'awaited' | 'ready'
  created_at: string
  expires_at: string | null
}
