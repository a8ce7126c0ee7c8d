#!/usr/bin/env bash
# promtool.sh [prometheus] [--found]: prints the path of promtool, which reads and tests the alerts, or of Prometheus itself.
# Where it is not installed it is taken out of Debian's package prometheus, once, without installing that, for that would start a server.
# With --found nothing is fetched. It lies in $FEEDMILL_CACHE, or else in ~/.cache/feedmill.
set -euo pipefail

name=promtool
[ "${1:-}" != prometheus ] || { name=$1; shift; }
command -v "$name" && exit 0
cache=${FEEDMILL_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or FEEDMILL_CACHE}/.cache}/feedmill}
program=$cache/promtool/$name
[ -x "$program" ] && { echo "$program"; exit 0; }
[ "${1:-}" != --found ] || exit 1

missing() {
    echo "missing: $name${1:+ ($1)}; on Debian or Ubuntu: sudo apt-get install -y --no-install-recommends prometheus" >&2
    exit 1
}
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || missing ""

mkdir -p "$cache"
# One at a time; who waited finds it there.
exec 9>"$cache/promtool.lock"
flock 9
if [ ! -x "$program" ]; then
    taken=$(mktemp -d "$cache/taking.XXXXXX")
    trap 'rm -rf "$taken"' EXIT
    # apt checks the package against the distribution's signature.
    (cd "$taken" && apt-get download -qq prometheus >/dev/null 2>&1) || missing "apt-get cannot download the package prometheus"
    dpkg-deb --extract "$taken"/prometheus_*.deb "$taken"
    "$taken/usr/bin/$name" --version >/dev/null 2>&1 || missing "it does not run here"
    mkdir -p "${program%/*}"
    mv "$taken/usr/bin/$name" "$program"
fi
echo "$program"
