#!/usr/bin/env bash
# One task a worker: it starts its engine on its share of the node's GPUs, keeps it alive, and hands it new weights.
set -euo pipefail
# shellcheck source=deploy/slurm/common.sh
source "$SLUICE_ROOT/deploy/slurm/common.sh"
use_services

port=$((SLUICE_FIRST_ENGINE_PORT + SLURM_LOCALID))
first=$((SLURM_LOCALID * SLUICE_GPUS_PER_ENGINE))
case $SLUICE_ENGINE in
sglang)
    CUDA_VISIBLE_DEVICES=$(seq -s, "$first" $((first + SLUICE_GPUS_PER_ENGINE - 1)))
    export CUDA_VISIBLE_DEVICES
    command="$SLUICE_ENGINE_PYTHON -m sglang.launch_server --model-path $SLUICE_MODEL --tp-size $SLUICE_GPUS_PER_ENGINE --skip-tokenizer-init"
    ;;
cpu) command="$SLUICE_ENGINE_PYTHON -m services.engine --model $SLUICE_MODEL" ;;
*) fail "SLUICE_ENGINE=$SLUICE_ENGINE: must be sglang or cpu" ;;
esac

export SLUICE_ENGINE_COMMAND="$command --host 127.0.0.1 --port $port"
export SLUICE_ENGINE_URL=http://127.0.0.1:$port
export SLUICE_REWARD_ADDRESSES=$SLUICE_HEAD:$SLUICE_REWARD_PORT
export SLUICE_CACHE_DIR=${SLUICE_CACHE_DIR:-${TMPDIR:-/tmp}/sluice-$SLURM_JOB_ID-$SLURM_LOCALID}
export SLUICE_WORKER_NAME=rollout-$SLURM_PROCID
logged "rollout-$SLURM_PROCID" "$SLUICE_PYTHON" -m services.rollout
