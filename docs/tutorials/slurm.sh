#!/bin/bash
# Trains a recipe on several hosts: sbatch slurm.sh RECIPE [FLAG ...]. Submitted again, it resumes the run.
#SBATCH --job-name=smoe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
# The state is stored five minutes before the time is over.
#SBATCH --signal=TERM@300
#SBATCH --requeue

set -euo pipefail

run=${RUN:-$PWD/runs/${1//\//-}}
processes=${PROCESSES:-2} # of each host; the number of its GPUs if it has some
HOST0=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HOST0 OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / processes))

# One launcher on each host. SLURM_NODEID is known there only, hence the single quotes.
# shellcheck disable=SC2016
exec srun --kill-on-bad-exit=1 bash -c '
    processes=$1
    shift
    exec torchrun --nnodes "$SLURM_NNODES" --node-rank "$SLURM_NODEID" --nproc-per-node "$processes" \
        --master-addr "$HOST0" --master-port 29500 -m smoe train "$@"
' launch "$processes" "$@" --output-dir "$run" --resume
