#!/bin/sh
# Installs Valkey: from this Debian's own packages, from its backports, or Redis in its place where it has neither.
set -eu

export DEBIAN_FRONTEND=noninteractive
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir -p "$place/sources" "$place/lists/partial"

install() {
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

# The mirrors and keys that are configured already, with one suite more. Nothing of it stays.
backports() {
    for file in /etc/apt/sources.list.d/*.sources; do
        [ -e "$file" ] || continue
        awk -v suite="$codename" 'BEGIN { RS = ""; ORS = "\n\n" }
            $0 ~ ("Suites:[^\n]*" suite "( |\n|$)") { sub(/Suites:[^\n]*/, "Suites: " suite " " suite "-backports"); print }
        ' "$file" >>"$place/sources/backports.sources"
    done
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -e "$file" ] || continue
        sed -n "s/^\(deb .*\) $codename \(.*\)/\1 $codename \2\n\1 $codename-backports \2/p" "$file" >>"$place/sources/backports.list"
    done
}

apt-get update -qq
if ! install valkey-server; then
    backports
    set -- -o "APT::Sandbox::User=root" -o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$place/sources" -o "Dir::State::Lists=$place/lists"
    if ! { apt-get update -qq "$@" && install "$@" -t "$codename-backports" valkey-server; }; then
        install redis-server
    fi
fi
