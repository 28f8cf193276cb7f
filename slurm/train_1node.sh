#!/bin/bash -l
# Train on one node with 4 GPUs, one rank a GPU; the short sister of train_128gpu.sh, which explains every line.
#
#   sbatch slurm/train_1node.sh JOB.toml [options of hpcpipe run]
#
#SBATCH --job-name=train_1node
##SBATCH --account=CHANGE_ME
##SBATCH --partition=CHANGE_ME
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

# shellcheck disable=SC1091  # your environment
[[ ! -f .venv/bin/activate ]] || source .venv/bin/activate
unset SLURM_EXPORT_ENV
set -euo pipefail

job=${1:?usage: sbatch slurm/train_1node.sh JOB.toml [options of hpcpipe run]}
shift
HPCPIPE_EXIT_CODE_FILE=$(mktemp)
export HPCPIPE_EXIT_CODE_FILE
options=(--kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
[[ -z ${MPI:-} ]] || options+=(--mpi="$MPI")

srun "${options[@]}" hpcpipe run "$job" "$@" &
ranks=$!
ended_by_slurm=
trap 'ended_by_slurm=yes' TERM
trap 'kill -USR2 "$ranks"' USR2
code=0; wait "$ranks" || code=$?
while ((code > 128)) && kill -0 "$ranks" 2>/dev/null; do
  code=0; wait "$ranks" || code=$?
done
said=$(<"$HPCPIPE_EXIT_CODE_FILE")
if [[ $said == [0-9]* ]]; then
  code=$said
elif [[ -z $said ]] && ((code == 140)); then  # SIGUSR2 before the ranks could catch it: nothing is lost
  code=75
fi
rm -f "$HPCPIPE_EXIT_CODE_FILE"
if ((code == 75)) && [[ -z $ended_by_slurm ]] && ((${SLURM_RESTART_COUNT:-0} < 100)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
