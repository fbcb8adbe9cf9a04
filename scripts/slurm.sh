#!/usr/bin/env bash
# Runs a command of unimoe on all nodes of a Slurm job, which are one Ray cluster while it lasts:
#
#     sbatch --nodes 4 --gpus-per-node 8 scripts/slurm.sh evaluate --checkpoint DIR --eval-tier full --store /shared/store
#
# Submit it from a clone on a file system that all nodes share, after `uv sync --extra cluster`. A job that is preempted
# is queued again and goes on: what is finished is in the store.
#SBATCH --job-name=unimoe
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1
#SBATCH --mem=0
#SBATCH --requeue
#SBATCH --no-kill
#SBATCH --open-mode=append
set -euo pipefail

if (($# == 0)); then
  echo "usage: sbatch [options of Slurm] scripts/slurm.sh COMMAND [options of unimoe COMMAND]" >&2
  exit 2
fi

export PATH="$PWD/.venv/bin:$PATH" RAY_USAGE_STATS_ENABLED=0
# Seconds in which Ray must be up on all nodes.
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT="${RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT:-600}"

# The first node's address, not its name: a machine's own name may mean 127.0.1.1 to itself.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1')  # not head, which would break the pipe
address=$(srun --nodes 1 --ntasks 1 --nodelist "$first" hostname -I | awk '{print $1}')
port=$((20000 + SLURM_JOB_ID % 10000))

# A node that is lost ends neither the step nor the job; Ray would see one CPU if the step had one.
srun --cpus-per-task "$SLURM_CPUS_ON_NODE" --no-kill --kill-on-bad-exit=0 --wait=0 \
  ray symmetric-run --address "$address:$port" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
  unimoe "$@" --engine ray --address auto
