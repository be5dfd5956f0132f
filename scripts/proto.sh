#!/usr/bin/env bash
# Generate the wire's stubs from proto/ into the folder given (default: this checkout).
#   scripts/proto.sh            write sluice/wire/v1
#   scripts/proto.sh --check    fail if what is committed is not what would be written
set -euo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin

generate() {
    local out=$1
    export PATH="$PWD/$bin:$PATH" # protoc looks for the plug-in of typed services there
    "$bin/python" -m grpc_tools.protoc -Iproto --python_out="$out" --pyi_out="$out" proto/sluice/wire/v1/*.proto
    # Only files with a service have a second stub.
    "$bin/python" -m grpc_tools.protoc -Iproto --grpc_python_out="$out" --mypy_grpc_out=quiet:"$out" \
        $(grep -l '^service ' proto/sluice/wire/v1/*.proto)
}

if [ "${1:-}" = "--check" ]; then
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    generate "$fresh"
    if ! diff -r -x __init__.py -x __pycache__ "$fresh/sluice/wire/v1" sluice/wire/v1; then
        echo "sluice/wire/v1 is not what proto/ says: run \`make proto\` and commit the outcome" >&2
        exit 1
    fi
else
    generate .
fi
