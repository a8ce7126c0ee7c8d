#!/usr/bin/env bash
# promtool.sh [prometheus] [--found]: prints the path of promtool, which reads and tests the alerts, or of Prometheus itself.
# Where it is not installed it is taken out of Debian's package prometheus, once, without installing that, for that would start a server
# (tools/cached.sh). With --found nothing is fetched.
set -euo pipefail
source "$(dirname "$0")/cached.sh"

name=promtool
[ "${1:-}" != prometheus ] || { name=$1; shift; }
program=$cache/promtool/$name

missing() {
    echo "missing: $name${1:+ ($1)}; on Debian or Ubuntu: sudo apt-get install -y --no-install-recommends prometheus" >&2
    exit 1
}
take() {
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || missing ""
    # apt checks the package against the distribution's signature.
    (cd "$1" && apt-get download -qq prometheus >/dev/null 2>&1) || missing "apt-get cannot download the package prometheus"
    dpkg-deb --extract "$1"/prometheus_*.deb "$1"
    "$1/usr/bin/$name" --version >/dev/null 2>&1 || missing "it does not run here"
    mv "$1/usr/bin/$name" "$1/$name"
    # The package has both, and is fetched once.
    local other
    for other in promtool prometheus; do
        [ $other = "$name" ] || [ -x "$cache/promtool/$other" ] || mv "$1/usr/bin/$other" "$cache/promtool/$other"
    done
}
command -v "$name" && exit 0
[ "${1:-}" != --found ] || [ -x "$program" ] || exit 1
once "$program" take
