#!/usr/bin/env bash
# Build the images and start the stack of docker-compose.yml with podman; train a tiny model; look at the metrics; stop.
# Needs root, Debian's packages and the wheels of pip's settings, but no Docker and no image registry: official images
# are replaced by local ones (deploy/compose/local-images.yml). The first time takes a quarter of an hour, later ones
# some minutes. Everything is kept under artifacts/compose; delete that folder to start from nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh

show_what_failed() {
    "${compose[@]}" --profile '*' ps --all --format '{{.Service}}: {{.Status}}' >&2 || true
    "${compose[@]}" --profile '*' logs --tail 30 >"$home/failed.log" 2>&1 || true
    say "the last lines of each container are in $home/failed.log" >&2
}

stop_everything() {
    local code=$?
    trap - EXIT INT TERM
    [ "$code" = 0 ] || show_what_failed
    "${compose[@]}" --profile '*' down --remove-orphans --volumes --timeout 20 >"$home/down.log" 2>&1 || code=1
    kill "${helpers[@]}" 2>/dev/null || true
    wait "${helpers[@]}" 2>/dev/null || true
    exit "$code"
}

check_health() { # podman asks systemd to run health checks, and a container may have no systemd
    local name
    while sleep 2; do
        for name in $(podman ps --format '{{.Names}}' 2>/dev/null); do
            podman healthcheck run "$name" >/dev/null 2>&1 || true # says unhealthy, which compose sees by itself
        done
    done
}

copy_run_file() { # the tiny run, long enough for several scrapes also on a fast machine, beside what it names
    mkdir -p "$CONFIGS"
    cp -r configs/data configs/tiny.toml configs/tiny_evaluated.toml "$CONFIGS/"
    cat >"$CONFIGS/smoke.toml" <<RUN
extends = "tiny_evaluated.toml"
name = "smoke"
trainer.total_steps = 150
evaluation.every_steps = 50
RUN
}

mkdir -p "$home"
exec 9>"$home/lock"
flock --nonblock 9 || fail "another compose-smoke runs in this folder"
scripts/compose/podman_home.sh
scripts/compose/base_image.sh
scripts/compose/local_images.sh
scripts/compose/service_images.sh
copy_run_file

read -r API_PORT PROMETHEUS_PORT ALERTMANAGER_PORT < <(
    .venv/bin/python -c 'from sluice.local.ports import free_ports; print(*free_ports(3))'
)
export API_PORT PROMETHEUS_PORT ALERTMANAGER_PORT
helpers=()
trap stop_everything EXIT INT TERM
podman system service --time 0 "$DOCKER_HOST" >"$home/podman.log" 2>&1 9>&- &
helpers+=($!)
check_health 9>&- &
helpers+=($!)
.venv/bin/python scripts/compose/smoke.py "${compose[@]}" 9>&- &
helpers+=($!)
wait $! # so that a signal is answered at once
