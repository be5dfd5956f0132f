# shellcheck shell=bash
# What every script of a job knows: settings, secrets, and where the services are. Sourced, never run.

# shellcheck source=deploy/slurm/sluice.env
source "$SLUICE_ROOT/deploy/slurm/sluice.env"
export SLUICE_HOME
EXIT_CONFIGURATION=2
cd "$SLUICE_ROOT" || exit
mkdir -p "$SLUICE_HOME/logs" "$SLUICE_HOME/secrets"

fail() { # MESSAGE: what a person has to mend
    echo "sluice-slurm: $*" >&2
    exit "$EXIT_CONFIGURATION"
}

sluice() { "$SLUICE_PYTHON" -m sluice.cli "$@"; }

make_secrets() { # once a job; a requeued one finds them
    local secrets=$SLUICE_HOME/secrets token
    chmod 700 "$secrets"
    for name in api_token nats_token redis_password; do
        [[ -s $secrets/$name ]] || (umask 077; head -c 24 /dev/urandom | base64 | tr '+/' '-_' >"$secrets/$name")
    done
    # The job may have another first node than before, so the addresses are written anew.
    token=$(<"$secrets/nats_token")
    (umask 077; echo "nats://$token@$SLUICE_HEAD:$SLUICE_NATS_PORT" >"$secrets/nats_url")
    (umask 077; echo "redis://:$(<"$secrets/redis_password")@$SLUICE_HEAD:$SLUICE_REDIS_PORT/0" >"$secrets/redis_url")
}

use_services() { # where they are, for services and for the command line
    export SLUICE_NATS_URL_FILE=$SLUICE_HOME/secrets/nats_url
    export SLUICE_REDIS_URL_FILE=$SLUICE_HOME/secrets/redis_url
    export SLUICE_API_TOKEN_FILE=$SLUICE_HOME/secrets/api_token
    export SLUICE_API_URL=http://$SLUICE_HEAD:$SLUICE_API_PORT
    export SLUICE_DATA_DIR=$SLUICE_HOME/data
    export SLUICE_METRICS_HOST=$SLUICE_LISTEN
    export HF_HUB_OFFLINE=1 # a model that is not in its folder is an error, never a download
}

logged() { # NAME COMMAND...: run it with its log; what it says of a wrong setting is kept for the job to repeat
    local log=$SLUICE_HOME/logs/$1.log code=0
    shift
    "$@" >>"$log" 2>&1 || code=$?
    ((code != EXIT_CONFIGURATION)) || grep '^sluice-' "$log" | tail -1 >"$SLUICE_HOME/refused"
    return "$code"
}

keep() { # NAME COMMAND...: run it again whenever it ends, unless it refuses its settings
    while [[ ! -s $SLUICE_HOME/refused ]]; do
        logged "$@" || true
        sleep 1
    done
}

stop() { # PROCESS...: end these jobs of the shell and all that they have started
    local process
    trap '' TERM # a second signal must not cut this short
    for process in "$@"; do kill -- "-$process" 2>/dev/null || true; done
    wait "$@" 2>/dev/null || true
}
