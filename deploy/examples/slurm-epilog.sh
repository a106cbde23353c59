#!/bin/sh
# Epilog= of slurm.conf: ends what a job has left on its GPUs, and gives the node back only when they are free. For GPUs that
# belong to one job at a time: whoever still holds them is ended, however it is called and whoever started it.

[ -n "${SLURM_JOB_GPUS:-}" ] || exit 0
/usr/bin/gpu-tracer release "$SLURM_JOB_GPUS" --yes --grace 10s >&2
# Its status is that of all holders; persistence daemons and monitors stay and are no reason to drain the node.
exec /usr/bin/gpu-tracer wait "$SLURM_JOB_GPUS" --timeout 10s --ignore infrastructure >&2
