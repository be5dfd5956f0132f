#!/usr/bin/env bash
# Part of `make check`: Docker Compose understands the stack under every profile, and the linters of what images are
# made by have nothing to say. Starts nothing and needs no network.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh

.venv/bin/hadolint Dockerfile deploy/compose/local-images.Dockerfile
.venv/bin/shellcheck --external-sources scripts/compose_smoke.sh scripts/compose/*.sh deploy/compose/build/* deploy/compose/image/*
"${compose[@]}" config --quiet # with the stand-ins of official images
docker_compose=${compose[0]}
for options in "--profile=" --profile=demo --profile=cli --profile=gpu --env-file=deploy/compose/gpu.env; do
    env --ignore-environment PATH="$PATH" "$docker_compose" --file docker-compose.yml "$options" config --quiet
done
