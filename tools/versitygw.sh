#!/usr/bin/env bash
# Prints the path of versitygw, the independent S3 server of the tests; builds it first when it is not there yet (tools/cached.sh).
set -euo pipefail
source "$(dirname "$0")/cached.sh"

version=v1.8.0
checksum=h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc=

missing() {
    echo "$1: the tests run against versitygw, an S3 server that is built with Go $go_needed or later; install it from https://go.dev/dl" >&2
    exit 1
}
build() {
    echo "building versitygw $version, once, into $cache" >&2
    go_program "$1" github.com/versity/versitygw "$version" "$checksum" github.com/versity/versitygw/cmd/versitygw
}
once "$cache/versitygw-$version/versitygw" build
