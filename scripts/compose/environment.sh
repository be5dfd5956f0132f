# Sourced by the scripts beside it: a podman of its own under artifacts/compose, and Docker Compose on top of it.
# Nothing here touches the machine's own containers, images or settings.

fail() { # one line that says what to do
    echo "compose-smoke: $*" >&2
    exit 2
}

say() { echo "compose-smoke: $*"; }

home=$PWD/artifacts/compose
base_image=localhost/sluice-base:bookworm
compose=("$(.venv/bin/python -c 'import compose; print(list(compose.__path__)[0])')/docker-compose"
    --file docker-compose.yml --file deploy/compose/local-images.yml)

export CONTAINERS_CONF=$home/containers.conf
export CONTAINERS_STORAGE_CONF=$home/storage.conf
export DOCKER_HOST=unix://$home/podman.sock
