#!/bin/bash -l
# A job array over overrides: element N trains with line N of a file, such as `--set optimizer.lr=3e-4 --set job.seed=1`.
#
#   sbatch --array=1-$(wc -l < sweep.txt)%4 slurm/array_sweep.sh JOB.toml sweep.txt
#
# %4 runs four at a time. Every element has its own run directory, runs/NAME/ARRAYJOB_ELEMENT-RESTART.
# `hpcpipe submit JOB.toml --sweep optimizer.lr=1e-3,3e-4` needs no file and checks every element before it submits.
#
#SBATCH --job-name=array_sweep
##SBATCH --account=CHANGE_ME
##SBATCH --partition=CHANGE_ME
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=2
#SBATCH --time=01:00:00
#SBATCH --output=%x-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --no-requeue

# shellcheck disable=SC1091  # your environment
[[ ! -f .venv/bin/activate ]] || source .venv/bin/activate
unset SLURM_EXPORT_ENV
set -euo pipefail

job=${1:?usage: sbatch --array=1-N slurm/array_sweep.sh JOB.toml sweep.txt}
sweep=${2:?usage: sbatch --array=1-N slurm/array_sweep.sh JOB.toml sweep.txt}
line=$(sed -n "${SLURM_ARRAY_TASK_ID}p" "$sweep")
[[ -n $line ]] || { echo "line $SLURM_ARRAY_TASK_ID of $sweep is empty or not there" >&2; exit 2; }
# Words in quotes stay together, and nothing in the line is run: xargs reads quotes and knows no $.
mapfile -d '' -t words < <(xargs printf '%s\0' <<<"$line")
options=(--kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
[[ -z ${MPI:-} ]] || options+=(--mpi="$MPI")

echo "element $SLURM_ARRAY_TASK_ID: ${words[*]}"
exec srun "${options[@]}" hpcpipe run "$job" "${words[@]}"
