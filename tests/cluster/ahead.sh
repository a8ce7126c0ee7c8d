#!/usr/bin/env bash
# ahead.sh COMMAND...: runs it, and builds Kubernetes beside it at the lowest priority, so that it is there when cluster tests begin.
# What is not finished when the command ends is stopped: the next build goes on from what Go has kept.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# Where a cluster is required, that none can run is known at once and not after everything else.
[ "${FEEDMILL_REQUIRE_CLUSTER:-}" != 1 ] || "$here/test.sh" --before true
build=
# Where no cluster can run none is built.
if ! "$here/build.sh" built && "$here/cluster" preflight >/dev/null 2>&1; then
    setsid nice -n 19 "$here/build.sh" >"${TMPDIR:-/tmp}/feedmill-cluster-build.log" 2>&1 &
    build=$!
fi
stop() {
    local code=$?
    [ -z "$build" ] || kill -- "-$build" 2>/dev/null || true
    exit $code
}
trap stop EXIT
"$@"
