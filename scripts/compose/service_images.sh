#!/usr/bin/env bash
# Build every image that docker-compose.yml builds, as it says and without a network. Layers that are there are taken
# again, so that only what changed since the last time costs.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh

builds() { # image, target and build arguments of each, a line
    "${compose[@]}" config --format json | .venv/bin/python -c '
import json, sys
for service in json.load(sys.stdin)["services"].values():
    if build := service.get("build"):
        print(service["image"], build["target"], *(f"{name}={value}" for name, value in build["args"].items() if value))
'
}

scripts/compose/wheelhouse.sh "$WHEELHOUSE" 2>"$home/wheelhouse.log" ||
    fail "wheels cannot be collected: $(tail -n 1 "$home/wheelhouse.log")"
while read -r image target arguments; do
    say "building $image"
    # shellcheck disable=SC2086  # a word each
    podman build --quiet --network none --target "$target" ${arguments:+$(printf -- '--build-arg %s ' $arguments)} \
        --tag "$image" . >"$home/build.log" 2>&1 </dev/null || fail "$image cannot be built: $(tail -n 1 "$home/build.log")"
done < <(builds | sort -u)
