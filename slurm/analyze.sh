#!/bin/bash -l
# Account for a run's time in a small job of its own, when the training has ended well:
#
#   id=$(sbatch --parsable slurm/train_128gpu.sh job.toml)
#   sbatch --dependency=afterok:"$id" slurm/analyze.sh runs/NAME/latest
#
# Reading logs needs one core, no GPU and no MPI. More than one run are put side by side.
#
#SBATCH --job-name=analyze
##SBATCH --account=CHANGE_ME
##SBATCH --partition=CHANGE_ME
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.out

# shellcheck disable=SC1091  # your environment
[[ ! -f .venv/bin/activate ]] || source .venv/bin/activate
set -euo pipefail

(($# > 0)) || { echo "usage: sbatch slurm/analyze.sh RUN... [options of hpcpipe analyze]" >&2; exit 2; }
exec hpcpipe analyze "$@"
