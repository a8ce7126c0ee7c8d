#!/bin/bash
# build.sh [kwok|built]: build everything the test cluster runs and print the folder that holds it. A no-op if it is already there.
#   kube     etcd + the Kubernetes components in one binary (one link instead of seven), with a symlink for each name
#   coredns  CoreDNS with the plugins we need       helm   the client that users install the chart with (tools/helm.sh)
#   kwok     only if asked for: fake nodes by the thousand
# With `built` nothing is built: it only says whether everything is there.
# The folder's name is the hash of what goes in, so it can be cached and never goes stale.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}" PATH=$PATH:/usr/local/go/bin
K8S=v1.36.3 KWOK=v0.8.0
KEY=$({ cat build.sh go.mod go.sum main.go dns/go.mod dns/go.sum dns/main.go; grep -E '^(version|checksum)=' ../../tools/helm.sh; } | sha256sum | cut -c1-16)
OUT=${FEEDMILL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/feedmill}/cluster-$KEY
finished() { [ -e "$OUT/done" ] && [ -x "$OUT/helm" ] && { [ "${1:-}" != kwok ] || [ -x "$OUT/kwok" ]; }; }
if [ "${1:-}" = built ]; then finished; exit; fi
if finished "$@"; then echo "$OUT"; exit; fi

command -v go >/dev/null || { echo "build.sh: no go in PATH (1.26 or newer is needed)" >&2; exit 1; }
mkdir -p "$OUT"
exec 9>"$OUT/lock"                                            # two test runs may start at the same time
flock -n 9 || { echo "build.sh: waiting for a build that is under way (${TMPDIR:-/tmp}/feedmill-cluster-build.log)" >&2; flock 9; }
if finished "$@"; then echo "$OUT"; exit; fi
export GOFLAGS="-mod=readonly -trimpath -buildvcs=false" GOTOOLCHAIN=local
say() { echo "build.sh: $*" >&2; }

# Each tool has a module graph of its own: in one go.mod they would raise the versions that Kubernetes was tested with.
install() { (cd / && GOFLAGS=-trimpath GOBIN=$OUT CGO_ENABLED=0 nice go install "$@" >&2); }
if [ "${1:-}" = kwok ]; then say "kwok $KWOK"; install -ldflags "-s -w" sigs.k8s.io/kwok/cmd/kwok@$KWOK; fi
if finished "$@"; then echo "$OUT"; exit; fi

# Without these strings /version answers "v0.0.0-master+$Format:%H$" and every version check of clients fails.
LD="-s -w"
for p in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
  LD="$LD -X $p.gitVersion=$K8S -X $p.gitMajor=1 -X $p.gitMinor=$(cut -d. -f2 <<<$K8S) -X $p.gitTreeState=clean -X $p.gitCommit=module -X $p.buildDate=2026-01-01T00:00:00Z"
done
say "kube $K8S (cold: 4 minutes on 2 cores; warm: seconds)"
nice go build -tags notest,grpcnotrace -ldflags "$LD" -o "$OUT/kube" . >&2
for n in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do ln -sf kube "$OUT/$n"; done
say "coredns"
(cd dns && CGO_ENABLED=0 nice go build -ldflags "-s -w" -o "$OUT/coredns" . >&2)
say "helm"
ln -sf "$(../../tools/helm.sh --own)" "$OUT/helm"
touch "$OUT/done"
say "$(du -sh "$OUT" | cut -f1) in $OUT"
echo "$OUT"
