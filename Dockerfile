# One image a service, all from this file. `docker compose build` makes them; by hand:
#
#   docker build --build-arg SERVICE=reward --tag sluice-reward .
#
# Each image holds the packages of its own service's extra in pyproject.toml and no others, so that only the engine's
# and the trainer's have torch. Without a network: docs/deployment.md, "Without a network".

ARG BASE_IMAGE=python:3.11-slim-bookworm

# --- packages: what others wrote; none of the tools that install it goes on into an image ------------------------------
FROM ${BASE_IMAGE} AS packages
# A folder of this context. With wheels in it, nothing is asked of a package index.
ARG WHEELHOUSE=deploy/compose/wheelhouse
# What pip and uv are told besides: --index-url of a mirror, say.
ARG PIP_ARGS=""
COPY ${WHEELHOUSE}/ /wheelhouse/
COPY deploy/compose/build/install-packages /usr/local/bin/
WORKDIR /src
COPY constraints.txt pyproject.toml ./
RUN install-packages tools
ARG SERVICE
# Extras of pyproject.toml, separated by commas: trainer,lora, say.
ARG EXTRAS=${SERVICE}
# Which torch: cpu, cu130, ...; empty: what the package index has, which is CUDA's.
ARG TORCH_BACKEND=cpu
RUN install-packages packages

# --- code: our own package, apart from the others, so that a change of ours makes a small layer --------------------------
FROM packages AS code
COPY README.md LICENSE ./
COPY services/ services/
COPY sluice/ sluice/
RUN install-packages code

# --- service: what runs --------------------------------------------------------------------------------------------------
FROM ${BASE_IMAGE} AS service
WORKDIR /app
# A new volume takes over the owner of the folder that it is mounted at.
RUN groupadd --gid 10001 sluice \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp sluice \
    && install -d -o sluice -g sluice /app/models /cache /data /data/weights /grafana-secrets /secrets
COPY --from=packages /opt/packages /opt/packages
COPY --from=code /opt/sluice /opt/sluice
COPY deploy/compose/image/ /usr/local/bin/
COPY configs/ configs/
ARG SERVICE
# Nothing is ever fetched at run time: a model that is not in its folder is an error.
# hadolint ignore=DL3064
ENV SERVICE=${SERVICE} \
    PATH=/opt/sluice/bin:/opt/packages/bin:$PATH \
    PYTHONPATH=/opt/sluice \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    HF_HUB_OFFLINE=1 \
    TOKENIZERS_PARALLELISM=false
USER 10001:10001
CMD ["/bin/sh", "-c", "exec python -m \"services.$SERVICE\""]

# --- models: the engine's image plus what makes the small models that come with Sluice, for a one-shot container --------
FROM packages AS makers
# Of our code, only what names the package with the demo's model.
COPY sluice/__init__.py /opt/sluice/sluice/
COPY sluice/models/ /opt/sluice/sluice/models/
RUN install-packages makers

FROM service AS models
COPY --from=makers /opt/makers /opt/makers
ENV PYTHONPATH=/opt/sluice:/opt/makers

# What a build without --target gives.
FROM service
