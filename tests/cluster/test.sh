#!/usr/bin/env bash
# test.sh [--if-built] [SCENARIO...]: brings a cluster up, runs e2e.sh on it, takes it down. Where no cluster can run it says so and
# is skipped; FEEDMILL_REQUIRE_CLUSTER=1 makes that a failure. With --if-built also where Kubernetes was not built yet, which takes
# many minutes.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

skip() {
    echo "cluster tests: SKIPPED (1 suite): $1"
    [ "${FEEDMILL_REQUIRE_CLUSTER:-}" != 1 ] || { echo "FEEDMILL_REQUIRE_CLUSTER=1 makes this a failure" >&2; exit 1; }
    exit 0
}
if_built=
[ "${1:-}" != --if-built ] || { if_built=1; shift; }
if [ -n "$if_built" ] && ! "$here/build.sh" built; then
    skip "Kubernetes is not built here; \`make cluster-build\` does that, once"
fi
reason=$("$here/cluster" preflight 2>&1 >/dev/null) || skip "$(tr '\n' ';' <<<"$reason")"
if [ -e "${FEEDMILL_CLUSTER:-${TMPDIR:-/tmp}/feedmill-cluster}" ]; then
    skip "a cluster is up on this machine; take it down with make cluster-down"
fi
trap '"$here/cluster" down' EXIT
"$here/cluster" up --nodes 3
"$here/e2e.sh" "$@"
