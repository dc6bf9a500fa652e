#!/usr/bin/env bash
# One process a GPU, found by JAX from SLURM's own variables. From the repository's root:
#   sbatch --nodes 2 experiments/clusters/slurm.sh dr_mas --model Qwen/Qwen3-1.7B --mesh data=2,fsdp=8 --groups 16 --out /shared/dr_mas
# --out must be a directory that all nodes share. A job that is told to end (its time is up, it is preempted) saves, ends
# with code 75 (143: it had not begun) and is queued again; the command is the same, so that it goes on where it was.
#SBATCH --job-name=jaxmarl_llm
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@120
set -euo pipefail
code=0
srun --kill-on-bad-exit=1 "${PYTHON:-.venv/bin/python}" -m experiments "$@" || code=$?
if [ "$code" = 75 ] || [ "$code" = 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
