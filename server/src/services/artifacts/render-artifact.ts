import type { ArtifactShape } from '@ichido/sdk/protocol'
import type { Artifact } from '../../store/artifacts/artifacts.ts'
import { iso, isoOrNull } from '../iso.ts'

export function renderArtifact(artifact: Artifact): ArtifactShape {
  return {
    artifact_id: artifact.artifactId,
    job_id: artifact.jobId,
    run_id: artifact.runId,
    name: artifact.name,
    sha256: artifact.sha256,
    size_bytes: artifact.sizeBytes,
    state: artifact.state,
    created_at: iso(artifact.createdAtMs),
    expires_at: isoOrNull(artifact.expiresAtMs),
  }
}
