#!/usr/bin/env bash
# Build the images of deploy/compose/local-images.yml, on the local base image, from programs that wheels and Debian have.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh

context=$home/programs
prometheus=$(scripts/tools/prometheus.sh)
mkdir -p "$context/templates"
cp -L .venv/bin/nats-server "$prometheus"/{prometheus,alertmanager} "$context/"
# Debian's Alertmanager has its templates beside it, the official one inside.
templates=$(dirname "$(readlink -f "$prometheus/alertmanager")")/../share/prometheus/alertmanager
[ ! -d "$templates" ] || cp "$templates"/*.tmpl "$context/templates/"

for image in nats redis prometheus alertmanager; do
    # Only Redis comes over the network: with Debian's package manager, from where this machine has its packages.
    podman build --quiet --network host --file deploy/compose/local-images.Dockerfile --target "$image" \
        --build-arg BASE_IMAGE="$base_image" --tag "localhost/sluice-local-$image:smoke" "$context" >"$home/build.log" 2>&1 ||
        fail "the image $image cannot be built: $(tail -n 1 "$home/build.log")"
done
