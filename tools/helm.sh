#!/usr/bin/env bash
# Prints the path of helm, which installs and renders the chart; builds it first, once, when it is not there yet. With --found nothing
# is built, with --own what is in PATH is left alone. It lies in $FEEDMILL_CACHE, or else in ~/.cache/feedmill. Go checks every module against its checksum database; helm's own
# checksum is pinned here too.
set -euo pipefail

version=v4.2.4
checksum=h1:qIysMI0JpTC4WXf3AQ99V6rZGT0+gO0Ww8IOnnUnaZk=
needed=1.26
cache=${FEEDMILL_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or FEEDMILL_CACHE}/.cache}/feedmill}
program=$cache/helm-$version/helm

[ "${1:-}" = --own ] || ! command -v helm || exit 0
[ -x "$program" ] && { echo "$program"; exit 0; }
[ "${1:-}" != --found ] || exit 1

missing() {
    echo "$1: the chart is tested with helm, which is built with Go $needed or later (https://go.dev/dl), or put into PATH; without it those tests are left out" >&2
    exit 1
}
export PATH=$PATH:/usr/local/go/bin
command -v go >/dev/null || missing "missing: go"
# Never another toolchain than the one that is installed.
export GOTOOLCHAIN=local GOFLAGS="-mod=mod -trimpath"
installed=$(go env GOVERSION)
installed=${installed#go}
[ "$(printf '%s\n%s\n' "$needed" "$installed" | sort -V | head -n1)" = "$needed" ] || missing "go is $installed"

mkdir -p "$cache"
# One build at a time; who waited finds it built.
exec 9>"$cache/helm.lock"
flock 9
if [ ! -x "$program" ]; then
    echo "building helm $version, once, into $cache" >&2
    built=$(mktemp -d "$cache/building.XXXXXX")
    trap 'rm -rf "$built"' EXIT
    # Elsewhere than in this folder, whose go.mod it must not read.
    (cd / && GOBIN=$built CGO_ENABLED=0 nice go install -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$version" "helm.sh/helm/v4/cmd/helm@$version" >&2) ||
        missing "helm $version cannot be built"
    go version -m "$built/helm" | grep -qF "helm.sh/helm/v4	$version	$checksum" || {
        echo "helm $version has not the checksum $checksum that tools/helm.sh expects" >&2
        exit 1
    }
    mkdir -p "${program%/*}"
    mv "$built/helm" "$program"
fi
echo "$program"
