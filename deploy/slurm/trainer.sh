#!/usr/bin/env bash
# One task a node: torchrun starts the node's ranks. When one ends, all end, on every node, and start again together.
set -euo pipefail
# shellcheck source=deploy/slurm/common.sh
source "$SLUICE_ROOT/deploy/slurm/common.sh"
use_services

export SLUICE_WEIGHTS_BIND=$HOST:$WEIGHTS_PORT SLUICE_WEIGHTS_ADVERTISE=$HEAD:$WEIGHTS_PORT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
logged "trainer-$SLURM_PROCID" "$PYTHON" -m services.trainer.launch \
    --nnodes "$TRAINER_NODES" --node-rank "$SLURM_PROCID" --nproc-per-node "$TRAINER_RANKS" \
    --master-addr "$HEAD" --master-port "$MASTER_PORT"
