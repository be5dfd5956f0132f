#!/usr/bin/env bash
# Everything that can be said about the code without running it. Needs no network and changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/ruff format --check --quiet .
.venv/bin/ruff check --quiet .
MYPYPATH=scripts .venv/bin/mypy --strict --no-error-summary sluice services tests scripts deploy/k8s/sluice/files $(compgen -G "bench/*.py")
scripts/proto.sh --check
.venv/bin/python scripts/dashboards.py --check
scripts/compose/lint.sh
.venv/bin/shellcheck --external-sources deploy/slurm/* tests/deploy/slurm/* scripts/bare_metal.sh
echo "check: format, lint, types, stubs, dashboards, compose files and Slurm scripts are clean"
