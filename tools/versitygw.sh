#!/usr/bin/env bash
# Prints the path of versitygw, the independent S3 server of the tests; builds it first when it is not there yet.
# It lies in $FEEDMILL_CACHE, or else in ~/.cache/feedmill. Go checks every module against its checksum database; the
# server's own checksum is pinned here too.
set -euo pipefail

version=v1.8.0
checksum=h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=
needed=1.26
cache=${FEEDMILL_CACHE:-${XDG_CACHE_HOME:-${HOME:?set HOME or FEEDMILL_CACHE}/.cache}/feedmill}
program=$cache/versitygw-$version/versitygw

[ -x "$program" ] && { echo "$program"; exit 0; }

missing() {
    echo "$1: the tests run against versitygw, an S3 server that is built with Go $needed or later; install it from https://go.dev/dl" >&2
    exit 1
}
command -v go >/dev/null || missing "missing: go"
# Never another toolchain than the one that is installed.
export GOTOOLCHAIN=local GOFLAGS=-mod=mod
installed=$(go env GOVERSION)
installed=${installed#go}
[ "$(printf '%s\n%s\n' "$needed" "$installed" | sort -V | head -n1)" = "$needed" ] || missing "go is $installed"

mkdir -p "$cache"
# One build at a time; who waited finds it built.
exec 9>"$cache/versitygw.lock"
flock 9
if [ ! -x "$program" ]; then
    echo "building versitygw $version, once, into $cache" >&2
    built=$(mktemp -d "$cache/building.XXXXXX")
    trap 'rm -rf "$built"' EXIT
    GOBIN=$built CGO_ENABLED=0 go install "github.com/versity/versitygw/cmd/versitygw@$version" >&2
    go version -m "$built/versitygw" | grep -qF "github.com/versity/versitygw	$version	$checksum" || {
        echo "versitygw $version has not the checksum $checksum that tools/versitygw.sh expects" >&2
        exit 1
    }
    mkdir -p "${program%/*}"
    mv "$built/versitygw" "$program"
fi
echo "$program"
