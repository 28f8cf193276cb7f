#!/bin/bash -l
# Train on 128 GPUs: 32 nodes with 4 GPUs each, one rank a GPU.
#
#   sbatch slurm/train_128gpu.sh [JOB.toml [options of hpcpipe run]]
#
# What you must change for your site stands in the first two blocks; options on sbatch's command line win over #SBATCH
# lines, and nothing below them depends on the sizes. `hpcpipe submit` writes such a script from the job file's [slurm].
# docs/slurm.md has the settings of sites like Perlmutter, Frontier, JUWELS and LUMI.

# ---- 1. what to ask Slurm for -----------------------------------------------------------------------------------------
#SBATCH --job-name=train_128gpu
##SBATCH --account=CHANGE_ME
##SBATCH --partition=CHANGE_ME     # or --qos, --constraint=gpu (Perlmutter-like)
#SBATCH --nodes=32
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@300
#
# --ntasks-per-node: 8 with 8 GPUs a node (Frontier- and LUMI-like: GCDs count as GPUs), then --nodes=16.
# --open-mode=append: a requeued job goes on in the same log.
# --signal: 300 s before the time limit every rank gets SIGUSR2 (a B: before it would send it to this script alone). It
#   must leave time for two steps and one checkpoint. Not USR1: NCCL takes that. Slurm may send it a minute early.

# ---- 2. environment ---------------------------------------------------------------------------------------------------
# Perlmutter-like:  module load python cudatoolkit craype-accel-nvidia80
# Frontier-like:    module load PrgEnv-gnu rocm craype-accel-amd-gfx90a cray-python
# JUWELS-like:      module load Stages/2025 GCC OpenMPI MPI-settings/CUDA Python
# LUMI-like:        module load LUMI partition/G PrgEnv-gnu rocm cray-python
# shellcheck disable=SC1091  # your environment, made by `make venv MPICC=...`
[[ ! -f .venv/bin/activate ]] || source .venv/bin/activate

MPI=${MPI:-}                 # srun --mpi=: pmix (Open MPI), pmi2 (MPICH, Intel MPI), empty for the site's own (Cray)
CPU_BIND=${CPU_BIND-cores}   # srun --cpu-bind=; LUMI-like: map_cpu:49,57,17,25,1,9,33,41, beside GPU and NIC
GPU_BIND=${GPU_BIND-none}    # each rank takes the GPU of its local id; closest on Frontier-like nodes

# GPU buffers in MPI. Each line is read by one family only, so they may stand together.
export MPICH_GPU_SUPPORT_ENABLED=${MPICH_GPU_SUPPORT_ENABLED:-0}  # Cray MPICH: 1, but only if the GTL library is there
export MPICH_OFI_NIC_POLICY=${MPICH_OFI_NIC_POLICY:-GPU}          # Cray MPICH: the NIC next to the rank's GPU
export FI_MR_CACHE_MONITOR=${FI_MR_CACHE_MONITOR:-memhooks}       # Slingshot: "disabled" if messages hang
export UCX_MEMTYPE_CACHE=${UCX_MEMTYPE_CACHE:-n}                  # Open MPI and MPICH on UCX: a stale cache sends wrong bytes
export OMPI_MCA_opal_cuda_support=${OMPI_MCA_opal_cuda_support:-1}
export OMPI_MCA_mpi_yield_when_idle=${OMPI_MCA_mpi_yield_when_idle:-1}
# With --gpus-per-task or --gpu-bind=single the ranks of a node do not see each other's GPU, and CUDA IPC between them fails
# or is silently slow; where a site enforces it: export MPICH_GPU_IPC_ENABLED=0.

# On many nodes thousands of files are imported by every rank at once, which a shared file system feels for minutes. With
# STAGE_TO=/tmp (or /dev/shm, or the node's NVMe disk) the environment is read once, sent by sbcast and unpacked by each node.
STAGE_TO=${STAGE_TO:-}
TO_STAGE=${TO_STAGE:-${VIRTUAL_ENV:-$PWD/.venv}}  # a venv or conda environment; no editable install

# ---- 3. the run: nothing to change below ------------------------------------------------------------------------------
unset SLURM_EXPORT_ENV  # after `sbatch --export=NONE` srun would hand on nothing of the above
set -euo pipefail

job=${1:-jobs/gpt_128.toml}
shift || true
max_restarts=${MAX_RESTARTS:-100}
HPCPIPE_EXIT_CODE_FILE=$(mktemp)  # rank 0 leaves its exit code here: srun tells that of whom it has killed
export HPCPIPE_EXIT_CODE_FILE

options=(--kill-on-bad-exit=1 --ntasks="$SLURM_NTASKS")
options+=(--cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")  # srun does not inherit it since Slurm 22.05
[[ -z $MPI ]] || options+=(--mpi="$MPI")
[[ -z $CPU_BIND ]] || options+=(--cpu-bind="$CPU_BIND")
[[ -z $GPU_BIND || -z ${SLURM_GPUS_ON_NODE:-} ]] || options+=(--gpu-bind="$GPU_BIND")

hpcpipe=(hpcpipe)
if [[ -n $STAGE_TO ]]; then
  stage=$STAGE_TO/hpcpipe-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
  each=(srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1)
  trap '"${each[@]}" rm -rf "$stage" "$stage.tar" "$stage.here.tar"' EXIT
  tar -C "$TO_STAGE" -cf "$stage.here.tar" .
  sbcast --force "$stage.here.tar" "$stage.tar"
  # shellcheck disable=SC2016  # the shell of each node expands $1
  "${each[@]}" bash -c 'mkdir -p "$1" && tar -C "$1" -xf "$1.tar" && rm "$1.tar"' unpack "$stage"
  hpcpipe=("$stage/bin/python" -m hpcpipe)
fi

echo "job $SLURM_JOB_ID, restart ${SLURM_RESTART_COUNT:-0}: $SLURM_NTASKS ranks on $SLURM_JOB_NODELIST"
# --broadcast: one rank reads the job file. A requeued job goes on from its last checkpoint by itself, if it has [checkpoint].
srun "${options[@]}" "${hpcpipe[@]}" run "$job" --broadcast "$@" &
ranks=$!

# Slurm ends a job by SIGTERM to the ranks and to this script, which stays until they have ended. SIGUSR2 to this script
# alone (scancel --batch) is handed on; the one of --signal goes to the ranks directly.
ended_by_slurm=
trap 'ended_by_slurm=yes' TERM
trap 'kill -USR2 "$ranks"' USR2
code=0; wait "$ranks" || code=$?
while ((code > 128)) && kill -0 "$ranks" 2>/dev/null; do  # a signal has interrupted the waiting
  code=0; wait "$ranks" || code=$?
done
said=$(<"$HPCPIPE_EXIT_CODE_FILE")
if [[ $said == [0-9]* ]]; then
  code=$said
elif [[ -z $said ]] && ((code == 140)); then  # SIGUSR2 before the ranks could catch it: nothing is lost
  code=75
fi
rm -f "$HPCPIPE_EXIT_CODE_FILE"

# 75: stopped by a signal, to be continued. Whoever cancelled or requeued the job has decided already.
if ((code == 75)) && [[ -z $ended_by_slurm ]] && ((${SLURM_RESTART_COUNT:-0} < max_restarts)); then
  scontrol requeue "$SLURM_JOB_ID"
  exit "$code"
fi

# ---- 4. where the time went -------------------------------------------------------------------------------------------
# report.txt and the pictures lie in the run directory already; this prints the account of the newest run once more.
((code != 0)) || for latest in runs/*/latest; do
  [[ ! -d $latest/events || $(readlink "$latest") != "$SLURM_JOB_ID-"* ]] || hpcpipe analyze "$latest"
done
exit "$code"
