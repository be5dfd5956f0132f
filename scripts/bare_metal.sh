#!/usr/bin/env bash
# docs/bare-metal.md, executed on this machine: its commands, and a Slurm job with stand-ins for srun and scontrol. Five
# tests of a minute each on two idle cores; -vv gives each a line.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest tests/deploy/walk_bare_metal.py -vv "$@"
