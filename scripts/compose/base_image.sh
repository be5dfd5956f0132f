#!/usr/bin/env bash
# Make the image that stands in for python:3.11-slim-bookworm where no image registry can be reached: Debian 12 with
# its Python, by debootstrap. Takes a minute, once; the tar file under artifacts/compose is kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh

tarball=$home/base.tar
if podman image exists "$base_image"; then exit 0; fi
if [ ! -f "$tarball" ]; then
    say "making the base image by debootstrap (once)"
    root=$(mktemp -d "$home/debootstrap.XXXX")
    trap 'rm -rf "$root"' EXIT
    # shellcheck disable=SC2016  # apt's own variables
    mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' | awk '$2 == "bookworm" { print $1; exit }')
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,wget bookworm "$root" \
        "${mirror:-}" >"$home/debootstrap.log" 2>&1 || fail "debootstrap failed: $(tail -1 "$home/debootstrap.log")"
    rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/usr/share/{doc,man,locale}
    tar -C "$root" --exclude=./dev/* -cf "$tarball.part" .
    mv "$tarball.part" "$tarball"
fi
podman import --quiet "$tarball" "$base_image" >/dev/null
