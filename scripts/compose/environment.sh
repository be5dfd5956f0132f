# shellcheck shell=bash
# shellcheck disable=SC2034  # read by those who source this
# Sourced by the scripts beside it: a podman of its own under artifacts/compose, and Docker Compose on top of it.
# Nothing here touches the machine's own containers, images or settings.

fail() { # one line that says what to do
    echo "compose-smoke: $*" >&2
    exit 2
}

say() { echo "compose-smoke: $*"; }

home=$PWD/artifacts/compose
base_image=localhost/sluice-base:bookworm
# The program itself: the console script of its package always ends with code 0.
compose=("$(.venv/bin/python -c 'import compose; print(*compose.__path__)')/docker-compose"
    --env-file /dev/null --file docker-compose.yml --file deploy/compose/local-images.yml)

export CONTAINERS_CONF=$home/containers.conf
export CONTAINERS_STORAGE_CONF=$home/storage.conf
export DOCKER_HOST=unix://$home/podman.sock

# What docker-compose.yml leaves open: images on the local base, and the model that costs seconds.
export COMPOSE_PROJECT_NAME=sluice-smoke
export BASE_IMAGE=$base_image IMAGE_PREFIX=localhost/ IMAGE_TAG=smoke WHEELHOUSE=artifacts/compose/wheelhouse PIP_ARGS=
export MODEL=tiny ENGINE_DTYPE=float32 CONFIGS=$home/configs DEMO_RUN_FILE=configs/smoke.toml
