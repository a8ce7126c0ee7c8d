#!/usr/bin/env bash
# e2e.sh [--usual | SCENARIO...]: Feedmill on a real cluster, as a user installs it. Needs a cluster of 3 nodes that is up and
# nothing else. --usual: those that show the most in the least time. Programs are those of `cargo build` (or of $FEEDMILL_PROGRAMS).
# Each scenario says what it saw and how long it took; they run in the order of `all`, and those after `install` and `apply` need both.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
root=$(readlink -f "$here/../..")
eval "$("$here/cluster" env)"
work=$(mktemp -d)
programs=${FEEDMILL_PROGRAMS:-$(cd "$root" && cargo metadata --locked --no-deps --format-version 1 | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')/debug}
ranks=$programs/examples/ranks
s3=172.30.0.254:9000
reference=172.30.0.254:8470                                   # a worker of this machine, which no cluster knows
system=feedmill-system
team=team
# Before a command: it has the cluster's names.
resolve=(unshare -m bash -c 'mount --bind "$1" /etc/resolv.conf; shift; exec "$@"' - "$work/resolv.conf")

k() { kubectl -n "$team" "$@"; }
say() { printf '%s\n' "$*"; }
seconds() { awk -v a="$1" -v b="$(date +%s%N)" 'BEGIN{printf "%.1f", (b - a) / 1e9}'; }
until_ok() { # SECONDS WHAT COMMAND...
    local begin=$SECONDS end=$((SECONDS + $1)) what=$2 pause=0.2
    shift 2
    # What takes long need not be looked at often: the machine is small.
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { say "waited too long for: $what"; return 1; }
        [ $SECONDS -lt $((begin + 15)) ] || pause=1
        sleep $pause
    done
}
same() { [ "$1" = "$2" ] || { say "expected '$2', found '$1'${3:+ ($3)}"; return 1; }; }
# Waits for something to be gone must not take an API server that does not answer for it.
nothing() { local out; out=$("$@") && [ -z "$out" ]; }         # COMMAND...: it answers, and with nothing
some() { local out; out=$("$@") && [ -n "$out" ]; }            # COMMAND...: it answers, and with something
answers() { local wanted=$1 out; shift; out=$("$@") && [ "$out" = "$wanted" ]; }
gone() { local out; out=$(k get "$@" 2>&1) && return 1; [[ $out == *NotFound* ]]; }
node_is() { answers "$2" kubectl get node "$1" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'; }
count_is() { local out; out=$(k get "${@:2}" -o name) && [ "$(grep -c . <<<"$out")" = "$1" ]; }   # NUMBER KIND...
wanted() { k get deploy "$1-worker" -o 'jsonpath={.spec.replicas}'; }
wanted_is() { answers "$2" wanted "$1"; }
serving_elsewhere() { # PIPELINE WORKERS NODE: so many are available, and none of those that stay stands there
    local out
    answers "$2" k get deploy "$1-worker" -o 'jsonpath={.status.availableReplicas}' && out=$(live "$1") && ! awk '{print $3}' <<<"$out" | grep -qx "$3"
}
get() { k get dpl "$1" -o "jsonpath=$2"; }
condition() { get "$1" "{.status.conditions[?(@.type==\"$2\")].$3}"; }
is() { [ "$(condition "$1" "$2" "${4:-status}")" = "$3" ]; }
told() { until_ok 60 "$2 of $1 to say $3" is "$@"; }             # PIPELINE CONDITION VALUE [FIELD]; a status is written some seconds after what it tells
ready_is() { [ "$(get "$1" '{.status.readyReplicas}/{.status.replicas}/{.status.desiredReplicas}')" = "$2/$2/$2" ]; }
# What stays: neither on its way out nor ended.
live() { k get pods -l "feedmill.dev/pipeline=$1" -o json | python3 -c '
import json, sys
lines = []
for pod in json.load(sys.stdin)["items"]:
    if "deletionTimestamp" not in pod["metadata"] and pod["status"].get("phase") not in ("Failed", "Succeeded"):
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))
        lines.append(" ".join([pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"].get("nodeName", "-"), pod["status"].get("podIP", "-"), "ready" if ready else "-"]))
# At once: who wants only the first line may be gone before a second is written.
sys.stdout.write("".join(line + "\n" for line in lines))'; }
serving() { local out; out=$(live "$1") && [ "$(awk '{print $5}' <<<"$out" | sort | uniq -c | xargs)" = "$2 ready" ]; }   # PIPELINE WORKERS: so many stay, and all are ready
spread() { live "$1" | awk '{count[$3]++} END {for (node in count) print node "=" count[node]}' | sort | xargs; }
addresses() { live "$1" | awk '{print $4}'; }
uids() { live "$1" | awk '{print $2}' | sort; }
both() { comm -12 <(echo "$1") <(echo "$2") | wc -l; }   # so many lines of two sorted lists are the same
whole() { # PIPELINE WORKERS [SECONDS]: as many serve as are wanted, and nothing is on its way
    # The pods first: a status may be some seconds old, and from before what was just taken away.
    until_ok "${3:-120}" "$2 workers of $1 that serve" serving "$1" "$2"
    until_ok 60 "$2 workers of $1 in its status" ready_is "$1" "$2"
    until_ok 60 "$1 to be Ready" is "$1" Ready True
    until_ok 60 "$1 to settle" is "$1" Progressing False
}
sized() { k scale "dpl/$1" --replicas="$2" >/dev/null; whole "$1" "$2"; }

# A training outside of the cluster, which finds its workers by the cluster's DNS. It pulls until it is told to stop; every position
# must have come once, with the hashes that a worker without any cluster gives.
pull() { # PIPELINE [MILLISECONDS of a step]
    rm -f "$work"/pull.{in,out,err}; mkfifo "$work/pull.in"
    "${resolve[@]}" "$ranks" --until-stdin-closes --steps 100000 --step-ms "${2:-200}" --ranks 4 --micro-batch 2 \
        "http://$1.$team.svc.cluster.local:8470" <"$work/pull.in" >"$work/pull.out" 2>"$work/pull.err" &
    echo $! >"$work/pull.pid"
    exec 8>"$work/pull.in"
    until_ok 60 "the first step of the ranks" test -s "$work/pull.out"
}
let_go() { # they are asked to end, and have had no error
    exec 8>&-
    tail --pid="$(cat "$work/pull.pid")" -f /dev/null
    rm -f "$work/pull.pid"
    tail -1 "$work/pull.out" | grep '"samples_a_second"' >/dev/null || { say "the ranks had an error: $(cat "$work/pull.err")"; return 1; }
}
pulled() { # and every position came once, as it is
    local steps
    let_go
    steps=$(($(wc -l <"$work/pull.out") - 1))
    same_chain "$steps" "$(tail -1 "$work/pull.out" | field chain)"
    say "ranks: $(tail -1 "$work/pull.out" | field positions) positions in $steps steps without an error, longest wait $(tail -1 "$work/pull.out" | field longest_wait_seconds) s, $(tail -1 "$work/pull.out" | field moved) batches by another worker"
}
same_chain() { # STEPS CHAIN: the last line's chain is over all samples, and what a worker without a cluster gives
    "$ranks" --steps "$1" --step-ms 0 --ranks 4 --micro-batch 2 "http://$reference" >"$work/reference.out"
    same "$2" "$(tail -1 "$work/reference.out" | field chain)" "chain of hashes"
}
field() { python3 -c 'import json, sys; value = json.load(sys.stdin)[sys.argv[1]]; print(round(value, 2) if isinstance(value, float) else value)' "$1"; }

code() { curl -sk -o /dev/null -w '%{http_code}' "$@"; }       # URL [ARGUMENTS of curl]: how it is answered
secret() { # NAME [KEY]: a Secret with keys of S3, as it is applied
    local key=${2:-e2e}
    k create secret generic "$1" --from-literal=access-key-id="$key" --from-literal=secret-access-key="$key-secret" --dry-run=client -o yaml
}

# Hashes of positions, from any worker.
hashes() { # ADDRESS RANGE
    "$programs/feedmill" get "http://$1:8470" "$2" | awk '$1 ~ /^[0-9]+$/ {print $1, $7}'
}

pipeline() { # NAME [LINES OF spec]
    cat <<Y
apiVersion: feedmill.dev/v1alpha1
kind: DataPipeline
metadata: {name: $1, namespace: $team}
spec:
  s3: {region: us-east-1, endpoint: "http://s3.$team.svc:9000", forcePathStyle: true, credentialsSecretRef: {name: s3-keys}}
  streams:
  - name: train
    seed: ${SEED:-42}
    datasets:
    - {name: captions, uri: "s3://quickstart/data/captions.jsonl", imageBaseUri: "s3://quickstart/images/"}
    - {name: chat, uri: "s3://quickstart/data/chat.jsonl.gz", imageBaseUri: "s3://quickstart/images/", percent: 150}
  processor: {uri: "s3://quickstart/processor/", minPixels: 65536, maxPixels: 262144, maxTokens: 2048}
  cache: {sharedMemory: 128Mi, fetch: 128Mi, decode: 512Mi, disk: 1Gi}
  limits: {maxImagePixels: 16000000, maxImageBytes: 16Mi, maxSampleBytes: 64Mi}
  worker:
    imagePullPolicy: Never
    image: $worker_image
    resources: {requests: {cpu: 50m}}
${2:-}
Y
}

# ------------------------------------------------------------ what is needed

program() { case $1 in ranks) echo "$ranks";; *) echo "$programs/feedmill-$1";; esac; }

storage_up() { # without what ranks are told to end by, which is closed only when nobody has it; a shell says nothing of it when it is killed
    ROOT_ACCESS_KEY=e2e ROOT_SECRET_KEY=e2e-secret "$("$root/tools/versitygw.sh")" --port "$s3" --iam-dir "$work/users" posix --sidecar "$work/metadata" \
        "$work/s3" >>"$work/s3.log" 2>&1 8>&- &
    echo $! >"$work/s3.pid"
    disown
}
prepare() {
    local name
    export AWS_ACCESS_KEY_ID=e2e AWS_SECRET_ACCESS_KEY=e2e-secret
    printf 'nameserver 172.30.0.1\noptions timeout:1\n' >"$work/resolv.conf"
    mkdir -p "$work/s3"
    cp -r "$root/examples/quickstart/bucket" "$work/s3/quickstart"
    mkdir -p "$work/users" "$work/metadata"
    storage_up
    pipeline fleet | sed "s/, credentialsSecretRef: {name: s3-keys}//; s/s3.$team.svc:9000/$s3/" >"$work/local.yaml"
    mkdir "$work/manifests"
    RUST_LOG=warn "$programs/feedmill-worker" --pipeline "$work/local.yaml" --cache-dir "$work/manifests" \
        --listen $reference --insecure-no-token >"$work/reference.log" 2>&1 &
    echo $! >"$work/reference.pid"
    for name in worker operator ranks; do
        "$here/cluster" image "localhost/feedmill/$name:e2e" "$work/$name.tar" "$(program $name)"
        "$here/cluster" load-image "$work/$name.tar"
        say "image of $name: $(du -m "$work/$name.tar" | cut -f1) MB"
    done
    for name in $system $team; do
        kubectl create namespace "$name" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
        kubectl label --overwrite namespace "$name" pod-security.kubernetes.io/enforce=restricted >/dev/null
    done
    # The server has a name in the cluster, which workers must resolve.
    k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Service
metadata: {name: s3}
spec: {clusterIP: None, ports: [{name: http, port: 9000}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s3, labels: {kubernetes.io/service-name: s3}}
addressType: IPv4
endpoints: [{addresses: ["${s3%:*}"]}]
ports: [{name: http, port: 9000}]
Y
    secret s3-keys | k apply -f - >/dev/null
}
local_hashes() { # what stands at the first 128 positions, without any worker; of the first epoch once `read` has run
    [ -s "$work/local" ] || bash -c 'for start in 0 32 64 96; do "$0" get "$1" $start-$((start + 32)); done' "$programs/feedmill" "$work/local.yaml" |
        awk '$1 ~ /^[0-9]+$/ {print $1, $7}' >"$work/local"
    sed -n "$1,$2p" "$work/local"
}
worker_image=localhost/feedmill/worker:e2e

. "$here/life.sh"
. "$here/sizes.sh"
. "$here/faults.sh"
. "$here/numbers.sh"

all="install apply read refused scale rollout broken_image stream overwritten missing conflict access keys one_per_node
    hpa external internal asked sated shown cut gone
    leader operator_down api_server out_of_memory evicted drained node_dies partitioned steady namespace delete"
usual="install apply read refused scale rollout hpa internal asked drained leader delete"

# ------------------------------------------------------------ run

dump() {
    say "---- what was there"
    kubectl get dpl -A -o yaml || true
    kubectl get pods -A -o wide || true
    kubectl get nodes -o wide || true
    kubectl get events -A --sort-by=.metadata.creationTimestamp | tail -60 || true
    kubectl -n $system logs -l app.kubernetes.io/name=feedmill-operator --tail=60 --prefix || true
    kubectl -n $system logs -l app.kubernetes.io/name=feedmill-operator --tail=60 --prefix --previous 2>/dev/null || true
    k logs -l app.kubernetes.io/component=worker --tail=20 --prefix || true
    tail -5 "$work"/*.log "$work"/*.err 2>/dev/null || true
}
finish() {
    local code=$?
    local pid
    for pid in "$work"/*.pid; do [ ! -e "$pid" ] || kill "$(cat "$pid")" 2>/dev/null || true; done
    rm -rf "$work"
    exit $code
}
trap finish EXIT

ended() { # from outside: what hangs tells how far it has come
    trap - TERM
    kill "$running" 2>/dev/null || true
    say "ENDED from outside in $scenario, after $(seconds "$t") s"
    sed 's/^/    /' "$work/out"
    dump
    exit 143
}
passed=0
begun=$(date +%s%N)
prepare
trap ended TERM
chosen=$*
if [ "$chosen" = --usual ]; then
    chosen=$usual
    # Kept from Debian's package, which may not be to be had; all others need nothing of the kind.
    "$root/tools/promtool.sh" prometheus --found >/dev/null || { say "LEFT OUT (1 scenario): asked, as there is no prometheus"; chosen=${chosen/ asked/}; }
fi
for scenario in ${chosen:-$all}; do
    t=$(date +%s%N)
    # In a shell of its own, which its first failing line ends, and names; not as a condition, where no line would. In the background, so
    # that it can be ended from outside.
    (set -eE; trap 'say "${BASH_SOURCE[0]##*/}:$LINENO: $BASH_COMMAND" >&2' ERR; "s_$scenario") >"$work/out" 2>&1 &
    running=$!
    code=0
    wait $running || code=$?
    if [ $code -ne 0 ]; then
        say "FAILED $scenario after $(seconds "$t") s"
        sed 's/^/    /' "$work/out"
        dump
        exit 1
    fi
    passed=$((passed + 1))
    say "ok     $scenario ($(seconds "$t") s)"
    sed 's/^/    /' "$work/out"
done
say "cluster tests: $passed scenarios passed in $(seconds "$begun") s"
