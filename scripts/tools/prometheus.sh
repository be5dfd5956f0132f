#!/usr/bin/env bash
# Print a folder that holds prometheus, promtool, alertmanager and amtool: those of this machine, else Debian's packages
# unpacked under artifacts/tools/prometheus (30 MB to fetch; needs no root and installs nothing). Quick when done.
set -euo pipefail
cd "$(dirname "$0")/../.."

tools=$PWD/artifacts/tools/prometheus
programs=(prometheus promtool alertmanager amtool)

fail() { # one line that says what to do
    echo "prometheus.sh: $*; put ${programs[*]} on PATH" >&2
    exit 2
}

find_program() { # Debian calls alertmanager prometheus-alertmanager
    local path
    for path in "$(command -v "$1")" "$(command -v "prometheus-$1")" "$tools/debian/usr/bin/"{"$1","prometheus-$1"}; do
        if [ -x "$path" ]; then
            echo "$path"
            return
        fi
    done
    return 1
}

link_programs() {
    mkdir -p "$tools/bin"
    local program path
    for program in "${programs[@]}"; do
        path=$(find_program "$program") || return 1
        ln -sfn "$path" "$tools/bin/$program"
    done
}

download() {
    (cd "$1" && apt-get download --quiet prometheus prometheus-alertmanager >log 2>&1)
}

download_with_own_lists() { # a fresh container has no package lists, and only root may refresh those of the system
    local lists=$1/lists
    mkdir -p "$lists/partial"
    apt-get update --quiet -o Dir::State::Lists="$lists" -o Dir::Cache="$1" >"$1/log" 2>&1 &&
        (cd "$1" && apt-get download --quiet -o Dir::State::Lists="$lists" -o Dir::Cache="$1" \
            prometheus prometheus-alertmanager >log 2>&1)
}

fetch() {
    command -v apt-get >/dev/null || fail "the monitoring programs are not installed, and there is no apt-get to fetch them with"
    local packages=$tools/packages package
    rm -rf "$packages" && mkdir -p "$packages"
    download "$packages" || download_with_own_lists "$packages" ||
        fail "the monitoring programs are not installed, and apt-get cannot fetch them ($(tail -n 1 "$packages/log"))"
    for package in "$packages"/*.deb; do
        dpkg -x "$package" "$tools/debian"
    done
    rm -rf "$packages"
}

mkdir -p "$tools"
exec 9>"$tools/lock"
flock 9 # another caller goes first
link_programs || { fetch && link_programs; } || fail "Debian's packages lack one of them"
echo "$tools/bin"
