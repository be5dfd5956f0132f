#!/usr/bin/env bash
# Write the settings of the podman under artifacts/compose, after making sure that all it needs is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=scripts/compose/environment.sh
. scripts/compose/environment.sh

packages=(podman runc netavark aardvark-dns iptables catatonit debootstrap)

[ "$(id -u)" = 0 ] || fail "needs root: debootstrap and the containers' network cannot be had without; use sudo"
if ! command -v podman runc iptables debootstrap catatonit >/dev/null || [ ! -x /usr/lib/podman/netavark ]; then
    command -v apt-get >/dev/null || fail "install ${packages[*]} with this system's package manager"
    say "installing ${packages[*]}"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}"; } >/dev/null ||
        fail "apt-get could not install ${packages[*]}; the lines above say why"
fi

mkdir -p "$home"
cat >"$CONTAINERS_CONF" <<CONF
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_config_dir = "$home/networks"
network_backend = "netavark"
CONF
cat >"$CONTAINERS_STORAGE_CONF" <<CONF
[storage]
driver = "overlay"
graphroot = "$home/storage"
runroot = "$home/run"
CONF
