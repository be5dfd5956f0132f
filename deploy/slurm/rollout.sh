#!/usr/bin/env bash
# One task a worker: it starts its engine on its share of the node's GPUs, keeps it alive, and hands it new weights.
set -euo pipefail
# shellcheck source=deploy/slurm/common.sh
source "$SLUICE_ROOT/deploy/slurm/common.sh"
use_services

port=$((FIRST_ENGINE_PORT + SLURM_LOCALID))
first=$((SLURM_LOCALID * GPUS_PER_ENGINE))
case $ENGINE in
sglang)
    CUDA_VISIBLE_DEVICES=$(seq -s, "$first" $((first + GPUS_PER_ENGINE - 1)))
    export CUDA_VISIBLE_DEVICES
    command="$ENGINE_PYTHON -m sglang.launch_server --model-path $MODEL --tp-size $GPUS_PER_ENGINE --skip-tokenizer-init"
    ;;
cpu) command="$ENGINE_PYTHON -m services.engine --model $MODEL" ;;
*) fail "ENGINE=$ENGINE: must be sglang or cpu" ;;
esac

export SLUICE_ENGINE_COMMAND="$command --host 127.0.0.1 --port $port"
export SLUICE_ENGINE_URL=http://127.0.0.1:$port
export SLUICE_REWARD_ADDRESSES=$HEAD:$REWARD_PORT
export SLUICE_CACHE_DIR=${SLUICE_CACHE_DIR:-${TMPDIR:-/tmp}/sluice-$SLURM_JOB_ID-$SLURM_LOCALID}
export SLUICE_WORKER_NAME=rollout-$SLURM_PROCID
logged "rollout-$SLURM_PROCID" "$PYTHON" -m services.rollout
