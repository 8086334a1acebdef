import { BadOptions } from '../errors.ts'

/**
 * The variables that a program inherits from the agent. This is a list of allowed variables, because the secrets of every
 * machine cannot be listed. A name that ends in * is a prefix.
 */
export const INHERITED: readonly string[] = [
  // The user, the machine and its language.
  ...['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'HOSTNAME', 'TERM', 'NO_COLOR'],
  ...['LANG', 'LANGUAGE', 'LC_*', 'TZ', 'TZDIR', 'TMPDIR', 'TMP', 'TEMP', 'XDG_*'],
  // Proxies and certificates.
  ...['HTTP_PROXY', 'HTTPS_PROXY', 'ALL_PROXY', 'NO_PROXY', 'http_proxy', 'https_proxy', 'all_proxy', 'no_proxy'],
  ...['SSL_CERT_FILE', 'SSL_CERT_DIR', 'CURL_CA_BUNDLE', 'REQUESTS_CA_BUNDLE'],
  // Libraries, languages and their environments.
  ...['LD_LIBRARY_PATH', 'LD_PRELOAD', 'DYLD_*', 'MALLOC_*', 'GLIBC_TUNABLES', 'JAVA_HOME', 'NODE_*'],
  ...['PYTHON*', 'VIRTUAL_ENV', 'CONDA_*', '_CE_*', 'MAMBA_*', 'PERL5LIB', 'R_HOME', 'R_LIBS*', 'JULIA_*'],
  ...['MODULEPATH', 'MODULESHOME', 'LOADEDMODULES', 'LMOD_*', 'EBROOT*', 'SPACK_*'],
  ...['APPTAINER_*', 'SINGULARITY_*', 'DOCKER_HOST'],
  // Threads, MPI and batch systems.
  ...['OMP_*', 'KMP_*', 'GOMP_*', 'MKL_*', 'OPENBLAS_*', 'BLIS_*', 'NUMEXPR_*', 'VECLIB_*'],
  ...['OMPI_*', 'OPAL_*', 'PRTE_*', 'PMI_*', 'PMIX_*', 'MPI_*', 'MPICH_*', 'I_MPI_*', 'MV2_*', 'HYDRA_*'],
  ...['UCX_*', 'FI_*', 'PSM*', 'SLURM_*', 'PBS_*', 'LSB_*'],
  // GPUs.
  ...['CUDA*', 'NVIDIA_*', 'NCCL_*', 'CUBLAS_*', 'CUDNN_*', 'GPU_*', 'ROCR_*', 'ROCM_*', 'HIP_*', 'HSA_*'],
  ...['ONEAPI_*', 'ZE_*', 'SYCL_*', 'TF_*', 'XLA_*', 'JAX_*', 'TORCH_*', 'PYTORCH_*'],
  // Quantum ESPRESSO.
  ...['ESPRESSO_*', 'BIN_DIR', 'PSEUDO_DIR'],
]

/** A secret with one of the prefixes above, such as SLURM_JWT, is inherited only if the operator names it. */
const SECRET = /TOKEN|SECRET|PASSW|CREDENTIAL|JWT|_KEY$/i

export function inherited(env: NodeJS.ProcessEnv): Record<string, string> {
  return Object.fromEntries(
    Object.entries(env).filter((entry): entry is [string, string] => entry[1] !== undefined && isInherited(entry[0])),
  )
}

function isInherited(name: string): boolean {
  if (SECRET.test(name)) return false
  return INHERITED.some((known) => (known.endsWith('*') ? name.startsWith(known.slice(0, -1)) : name === known))
}

/** The variables of `--env NAME` and `--env NAME=VALUE`. */
export function addedEnv(given: readonly string[], env: NodeJS.ProcessEnv): Record<string, string> {
  return Object.fromEntries(
    given.map((text) => {
      const [, name, value] = /^([A-Za-z_]\w*)(?:=(.*))?$/s.exec(text) ?? []
      if (name === undefined) throw new BadOptions(`--env must be NAME or NAME=VALUE, not ${JSON.stringify(text)}`)
      const known = value ?? env[name]
      if (known === undefined) throw new BadOptions(`--env ${name}: there is no such variable here; use ${name}=VALUE`)
      return [name, known]
    }),
  )
}
