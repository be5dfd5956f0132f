#!/usr/bin/env bash
# On the first node of the job: NATS, Redis, one reward service and the coordinator, each started again when it dies.
set -euo pipefail
# shellcheck source=deploy/slurm/common.sh
source "$SLUICE_ROOT/deploy/slurm/common.sh"
use_services
set -m # each service is a process group of its own, which `stop` ends

(
    umask 077
    cat >"$SLUICE_HOME/secrets/nats.conf" <<CONF
listen: "$SLUICE_LISTEN:$SLUICE_NATS_PORT"
max_payload: 8388608
jetstream { store_dir: "$SLUICE_HOME/nats" }
authorization { token: "$(<"$SLUICE_HOME/secrets/nats_token")" }
CONF
    cat >"$SLUICE_HOME/secrets/redis.conf" <<CONF
bind $SLUICE_LISTEN
port $SLUICE_REDIS_PORT
save ""
requirepass $(<"$SLUICE_HOME/secrets/redis_password")
CONF
)
export SLUICE_REWARD_BIND=$SLUICE_LISTEN:$SLUICE_REWARD_PORT SLUICE_API_HOST=$SLUICE_LISTEN SLUICE_API_PORT
export TZ=UTC # NATS and Redis do not say in which zone their time is
keep nats "$SLUICE_NATS_SERVER" --config "$SLUICE_HOME/secrets/nats.conf" & services=($!)
keep redis "$SLUICE_REDIS_SERVER" "$SLUICE_HOME/secrets/redis.conf" & services+=($!)
keep reward "$SLUICE_PYTHON" -m services.reward & services+=($!)
keep coordinator "$SLUICE_PYTHON" -m services.coordinator & services+=($!)
trap 'stop "${services[@]}"' EXIT
trap 'exit 143' TERM
wait -n # `keep` ends only when a service refuses its settings
exit "$EXIT_CONFIGURATION"
