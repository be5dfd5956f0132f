#!/usr/bin/env bash
# One task a node: torchrun starts the node's ranks. When one ends, all end, on every node, and start again together.
set -euo pipefail
# shellcheck source=deploy/slurm/common.sh
source "$SLUICE_ROOT/deploy/slurm/common.sh"
use_services

export SLUICE_WEIGHTS_BIND=$SLUICE_LISTEN:$SLUICE_WEIGHTS_PORT
export SLUICE_WEIGHTS_ADVERTISE=$SLUICE_HEAD:$SLUICE_WEIGHTS_PORT
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
logged "trainer-$SLURM_PROCID" "$SLUICE_PYTHON" -m services.trainer.launch \
    --nnodes "$SLUICE_TRAINER_NODES" --node-rank "$SLURM_PROCID" --nproc-per-node "$SLUICE_TRAINER_RANKS" \
    --master-addr "$SLUICE_HEAD" --master-port "$SLUICE_MASTER_PORT"
