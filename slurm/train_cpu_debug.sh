#!/bin/bash -l
# A few minutes on CPU nodes: does everything around the training work here? The doctor on all ranks, then five steps.
#
#   sbatch slurm/train_cpu_debug.sh [JOB.toml [options of hpcpipe run]]
#
#SBATCH --job-name=train_cpu_debug
##SBATCH --account=CHANGE_ME
##SBATCH --partition=CHANGE_ME
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=00:15:00
#SBATCH --output=%x-%j.out
#SBATCH --no-requeue

# shellcheck disable=SC1091  # your environment
[[ ! -f .venv/bin/activate ]] || source .venv/bin/activate
unset SLURM_EXPORT_ENV
set -euo pipefail

job=${1:-jobs/quickstart.toml}
shift || true
options=(--kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
[[ -z ${MPI:-} ]] || options+=(--mpi="$MPI")

srun "${options[@]}" hpcpipe doctor
exec srun "${options[@]}" hpcpipe run "$job" --set job.steps=5 "$@"
