#!/usr/bin/env bash
# Everything that can be said about the Helm chart without a cluster: linted, rendered with every set of values,
# validated against Kubernetes' own schemas, packed, tested resource by resource, and rehearsed: what the pods of the
# laptop example would run is run here, until its training run is over (a few minutes).
set -euo pipefail
cd "$(dirname "$0")/.."

chart=deploy/k8s/sluice
versions=(1.28 1.31 1.34 1.37)
helm=$(scripts/tools/helm.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

quietly() { # Helm says at each start that two folders of the chart are links, which is how it should be
    "$@" 2> >(grep -v "found symbolic link" >&2)
}

check() { # NAME [VALUES_FILE]
    local values=()
    [ $# -lt 2 ] || values=(--values "$2")
    quietly "$helm" lint --strict --quiet "$chart" "${values[@]}"
    quietly "$helm" template sluice "$chart" --namespace training "${values[@]}" >"$work/$1.yaml"
    PYTHONPATH=scripts .venv/bin/python -m chart.validate "${versions[@]}" <"$work/$1.yaml"
    echo "chart-check: $1: $(grep -c '^kind: ' "$work/$1.yaml") resources, valid in Kubernetes ${versions[*]}"
}

check defaults
for file in "$chart"/examples/*.yaml tests/deploy/values/*.yaml; do
    check "$(basename "$file" .yaml)" "$file"
done
quietly "$helm" package "$chart" --destination "$work" >/dev/null
echo "chart-check: packed, $(du -h --apparent-size "$work"/*.tgz | cut -f1)"
.venv/bin/python -m pytest tests/deploy/test_chart*.py
rehearse() { # ARGUMENT...
    quietly "$helm" template sluice "$chart" --namespace training --values "$chart/examples/laptop.yaml" "$@" |
        PYTHONPATH=scripts .venv/bin/python -m chart.rehearse
}
rehearse
rehearse --set run.weightsTransport=grpc,trainer.ranksPerNode=2 # torchrun, and weights as a stream
