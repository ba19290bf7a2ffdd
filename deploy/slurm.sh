#!/bin/bash
# A run on a Slurm cluster: Ray on every node of the job, the run itself on the first. Not run by us on a cluster.
#
#   sbatch deploy/slurm.sh math-7b-8gpu cluster.learner_ranks=8 cluster.engines=8 --output-dir runs/math
#
# Words after the file are those of `dapo train`. The folder that you submit from has to be on a file system that all
# nodes see, with the environment in .venv (or set VENV). Submitted again with --resume RUN, it goes on.
#SBATCH --job-name=dapo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --signal=B:TERM@300
# Five minutes before the limit the run is asked to save and stop: it exits with 3, and --resume goes on.
set -euo pipefail

VENV=${VENV:-.venv}
PORT=${PORT:-6379}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

on_head() { srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap "$@"; }

address=$(on_head hostname --ip-address | awk '{print $1}')
on_head "$VENV/bin/ray" start --head --node-ip-address="$address" --port="$PORT" --disable-usage-stats --block &
sleep 10
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" --overlap \
        "$VENV/bin/ray" start --address="$address:$PORT" --disable-usage-stats --block &
    sleep 10
fi

on_head env RAY_ADDRESS="$address:$PORT" "$VENV/bin/dapo" train "$@" cluster.kind=ray &
run=$!
trap 'kill -TERM "$run"; wait "$run"' TERM
wait "$run"
