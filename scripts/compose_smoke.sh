#!/usr/bin/env bash
# Build the images and start the stack of docker-compose.yml with podman; train a tiny model; look at the metrics; stop.
# Needs root, Debian's packages and the wheels of pip's settings, but no Docker and no image registry: official images
# are replaced by local ones (deploy/compose/local-images.yml). The first time takes some ten minutes, later ones two.
# Everything is kept under artifacts/compose; delete that folder to start from nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/compose/podman_home.sh
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh

exec 9>"$home/lock"
flock --nonblock 9 || fail "another compose-smoke runs in this folder"

stop_everything() {
    local code=$?
    trap - EXIT INT TERM
    [ "$code" = 0 ] || show_what_failed
    "${compose[@]}" --profile '*' down --volumes --timeout 20 >"$home/down.log" 2>&1 || code=1
    kill "${helpers[@]}" 2>/dev/null || true
    wait "${helpers[@]}" 2>/dev/null || true
    exit "$code"
}

show_what_failed() {
    "${compose[@]}" --profile '*' ps --all --format '{{.Service}}: {{.Status}}' >&2 || true
    "${compose[@]}" --profile '*' logs --tail 15 >"$home/failed.log" 2>&1 || true
    say "the last lines of each service are in $home/failed.log" >&2
}

check_health() { # podman asks systemd to run health checks, and a container may have none
    while sleep 2; do
        podman ps --format '{{.Names}}' 2>/dev/null | while read -r name; do
            podman healthcheck run "$name" >/dev/null 2>&1 || true
        done
    done
}

helpers=()
scripts/compose/base_image.sh
scripts/compose/local_images.sh
scripts/compose/service_images.sh

trap stop_everything EXIT INT TERM
podman system service --time 0 "$DOCKER_HOST" >"$home/podman.log" 2>&1 9>&- &
helpers+=($!)
check_health 9>&- &
helpers+=($!)
scripts/compose/smoke_run.sh
