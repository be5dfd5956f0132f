#!/usr/bin/env bash
# Build every image that docker-compose.yml builds, as it says and without a network. Returns at once when nothing has
# changed; else layers that are there are taken again.
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
' | sort -u
}

inputs=(Dockerfile .dockerignore LICENSE README.md configs constraints.txt deploy/compose/build deploy/compose/image
    pyproject.toml services sluice)
context=$home/context

take_snapshot() { # so that all images are of one moment, however long they take and whoever goes on writing
    rm -rf "$context"
    mkdir -p "$context/$(dirname "$WHEELHOUSE")"
    cp -a --parents "${inputs[@]}" "$context"
    cp -al "$WHEELHOUSE" "$context/$WHEELHOUSE"
}

fingerprint() { # of everything that an image is made of
    { builds && cd "$context" && find "${inputs[@]}" -type f ! -name '*.pyc' -exec cksum {} + | sort; } | cksum
}

build() { # IMAGE TARGET ARGUMENT...
    local image=$1 target=$2
    shift 2
    say "building $image"
    podman build --quiet --network none --target "$target" "${@/#/--build-arg=}" --tag "$image" "$context" \
        >"$home/build.log" 2>&1 </dev/null || fail "$image cannot be built: $(tail -n 1 "$home/build.log")"
}

scripts/compose/wheelhouse.sh "$WHEELHOUSE" 2>"$home/wheelhouse.log" ||
    fail "wheels cannot be collected: $(tail -n 1 "$home/wheelhouse.log")"
take_snapshot
built=$(fingerprint)
if [ "$(cat "$home/images-stamp" 2>/dev/null)" = "$built" ] &&
    builds | cut -d ' ' -f 1 | xargs -n 1 podman image exists; then exit 0; fi
while read -r -a words; do build "${words[@]}"; done < <(builds)
echo "$built" >"$home/images-stamp"
