#!/usr/bin/env bash
# The part of scripts/compose_smoke.sh that looks: the stack comes up healthy, a run finishes, nothing is lost, metrics
# are scraped, and after `down` nothing is left.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh
