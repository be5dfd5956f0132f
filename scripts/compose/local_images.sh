#!/usr/bin/env bash
# Build the images of deploy/compose/local-images.yml, on the local base image, from programs that wheels and Debian have.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh

context=$home/programs
mkdir -p "$context"
cp -L .venv/bin/nats-server "$context/"
cp -L "$(scripts/tools/prometheus.sh)"/{prometheus,alertmanager} "$context/"

for image in nats redis prometheus alertmanager; do
    # Only Redis comes over the network: with Debian's package manager, from where this machine has its packages.
    podman build --quiet --network host --file deploy/compose/local-images.Dockerfile --target "$image" \
        --build-arg BASE_IMAGE="$base_image" --tag "localhost/sluice-local-$image:smoke" "$context" >"$home/build.log" 2>&1 ||
        fail "the image $image cannot be built: $(tail -n 1 "$home/build.log")"
done
