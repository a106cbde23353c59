#!/bin/sh
# Prolog= of slurm.conf: a job starts only on GPUs that nobody holds any more. Where that fails Slurm drains the node and starts
# the job elsewhere; who holds what stands in the log of slurmd. PrologEpilogTimeout= must be longer than this takes.

# Indexes of the job's GPUs on this node, as 0,2 or 0-3; a job without GPUs has none.
[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
exec /usr/bin/gpu-tracer wait "$SLURM_JOB_GPUS" --timeout 60s --ignore infrastructure >&2
