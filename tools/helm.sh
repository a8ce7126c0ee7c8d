#!/usr/bin/env bash
# Prints the path of helm, which installs and renders the chart; builds it first, once, when it is not there yet (tools/cached.sh). With
# --found nothing is built, with --own what is in PATH is left alone.
set -euo pipefail
source "$(dirname "$0")/cached.sh"

version=v4.2.4
checksum=h1:qIysMI0JpTC4WXf3AQ99V6rZGT0+gO0Ww8IOnnUnaZk=
program=$cache/helm-$version/helm

missing() {
    echo "$1: the chart is tested with helm, which is built with Go $go_needed or later (https://go.dev/dl), or put into PATH; without it those tests are left out" >&2
    exit 1
}
build() {
    echo "building helm $version, once, into $cache" >&2
    go_program "$1" helm.sh/helm/v4 "$version" "$checksum" helm.sh/helm/v4/cmd/helm \
        -ldflags "-s -w -X helm.sh/helm/v4/internal/version.version=$version"
}
[ "${1:-}" = --own ] || ! command -v helm || exit 0
[ "${1:-}" != --found ] || [ -x "$program" ] || exit 1
once "$program" build
