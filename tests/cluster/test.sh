#!/usr/bin/env bash
# test.sh [--usual | SCENARIO...]: brings a cluster up, runs e2e.sh on it, takes it down. Where no cluster can run it says so and is
# skipped; FEEDMILL_REQUIRE_CLUSTER=1 makes that a failure.
# test.sh --before COMMAND...: runs the command if a cluster can run, before anything is built for one; it is skipped likewise.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

skip() {
    echo "cluster tests: SKIPPED (1 suite): $1"
    [ "${FEEDMILL_REQUIRE_CLUSTER:-}" != 1 ] || { echo "FEEDMILL_REQUIRE_CLUSTER=1 makes this a failure" >&2; exit 1; }
    exit 0
}
reason=$("$here/cluster" preflight 2>&1 >/dev/null) || skip "$(tr '\n' ';' <<<"$reason")"
if [ -e "${FEEDMILL_CLUSTER:-${TMPDIR:-/tmp}/feedmill-cluster}" ]; then
    skip "a cluster is up on this machine; take it down with make cluster-down"
fi
if [ "${1:-}" = --before ]; then
    shift
    exec "$@"
fi
trap '"$here/cluster" down' EXIT
"$here/cluster" up --nodes 3
# Longer than all scenarios take; what hangs is ended, and tells where it was.
code=0
timeout --foreground -k 120 3600 "$here/e2e.sh" "$@" || code=$?
[ $code -ne 124 ] || echo "cluster tests: ended after an hour" >&2
exit $code
