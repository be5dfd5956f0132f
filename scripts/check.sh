#!/usr/bin/env bash
# Everything that can be said about the code without running it. Needs no network and changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff format --check --quiet .
.venv/bin/ruff check --quiet .
.venv/bin/mypy --strict --no-error-summary sluice services
scripts/proto.sh --check
echo "check: format, lint, types and stubs are clean"
