#!/usr/bin/env bash
# e2e.sh [SCENARIO...]: Feedmill on a real cluster, as a user installs it. Needs a cluster that is up and nothing else.
# Programs are those of `cargo build` (or of $FEEDMILL_PROGRAMS). Each scenario says what it saw and how long it took.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
root=$(readlink -f "$here/../..")
eval "$("$here/cluster" env)"
work=$(mktemp -d)
programs=${FEEDMILL_PROGRAMS:-$(cd "$root" && cargo metadata --locked --no-deps --format-version 1 | python3 -c 'import json,sys; print(json.load(sys.stdin)["target_directory"])')/debug}
s3=172.30.0.254:9000
system=feedmill-system
team=team

k() { kubectl -n "$team" "$@"; }
say() { printf '%s\n' "$*"; }
seconds() { awk -v a="$1" -v b="$(date +%s%N)" 'BEGIN{printf "%.1f", (b - a) / 1e9}'; }
until_ok() { # SECONDS WHAT COMMAND...
    local end=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { say "waited too long for: $what"; return 1; }
        sleep 0.2
    done
}
same() { [ "$1" = "$2" ] || { say "expected '$2', found '$1'${3:+ ($3)}"; return 1; }; }
get() { k get dpl "$1" -o "jsonpath=$2"; }
condition() { get "$1" "{.status.conditions[?(@.type==\"$2\")].$3}"; }
is() { [ "$(condition "$1" "$2" "${4:-status}")" = "$3" ]; }
ready_is() { [ "$(get "$1" '{.status.readyReplicas}/{.status.replicas}/{.status.desiredReplicas}')" = "$2/$2/$2" ]; }
live() { k get pods -l "feedmill.dev/pipeline=$1" -o json | python3 -c '
import json, sys
for pod in json.load(sys.stdin)["items"]:
    if "deletionTimestamp" not in pod["metadata"]:
        print(pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"].get("nodeName", "-"), pod["status"].get("podIP", "-"))'; }
spread() { live "$1" | awk '{count[$3]++} END {for (node in count) print node "=" count[node]}' | sort | xargs; }
addresses() { live "$1" | awk '{print $4}'; }

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
  s3: {region: us-east-1, endpoint: "http://$s3", forcePathStyle: true, credentialsSecretRef: {name: s3-keys}}
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

prepare() {
    local name
    mkdir -p "$work/s3"
    cp -r "$root/examples/quickstart/bucket" "$work/s3/quickstart"
    mkdir -p "$work/users" "$work/metadata"
    ROOT_ACCESS_KEY=e2e ROOT_SECRET_KEY=e2e-secret "$("$root/tools/versitygw.sh")" --port "$s3" --iam-dir "$work/users" posix --sidecar "$work/metadata" \
        "$work/s3" >"$work/s3.log" 2>&1 &
    echo $! >"$work/s3.pid"
    for name in worker operator; do
        "$here/cluster" image "localhost/feedmill/$name:e2e" "$work/$name.tar" "$programs/feedmill-$name"
        "$here/cluster" load-image "$work/$name.tar"
        say "image of $name: $(du -m "$work/$name.tar" | cut -f1) MB"
    done
    for name in $system $team; do
        kubectl create namespace "$name" >/dev/null
        kubectl label namespace "$name" pod-security.kubernetes.io/enforce=restricted >/dev/null
    done
    k create secret generic s3-keys --from-literal=access-key-id=e2e --from-literal=secret-access-key=e2e-secret >/dev/null
}
worker_image=localhost/feedmill/worker:e2e

# ------------------------------------------------------------ scenarios, in this order

s_install() {
    helm install feedmill "$root/charts/feedmill" -n $system --wait --timeout 2m \
        --set global.imageRegistry=localhost --set operator.image.tag=e2e --set worker.image.tag=e2e --set operator.image.pullPolicy=Never >/dev/null
    kubectl wait --for=condition=Established crd/datapipelines.feedmill.dev --timeout=20s >/dev/null
    same "$(kubectl -n $system get deploy feedmill -o 'jsonpath={.status.readyReplicas}')" 2
    kubectl explain dpl.spec.placement.spread.mode | grep -q OnePerNode
}

s_apply() { # a fleet stands, spread over the nodes
    local t; t=$(date +%s%N)
    pipeline fleet "  replicas: 3" | kubectl apply -f - >/dev/null
    k wait --for=condition=Ready dpl/fleet --timeout=120s >/dev/null
    say "all Ready after $(seconds "$t") s"
    until_ok 30 "counts" ready_is fleet 3
    same "$(spread fleet)" "n1=1 n2=1 n3=1"
    until_ok 30 "a plan" is fleet PlanConsistent True
    same "$(k get configmap fleet-plan -o 'jsonpath={.data.train}')" "$(get fleet '{.status.planDigests.train}')"
    k get dpl | head -2
    same "$(k get dpl fleet --no-headers | awk '{print $2, $3, $4, $5, $6}')" "True WorkersServe 3 3 3"
    is fleet SpreadSatisfied True
    # Applied again it is the same object.
    local generation; generation=$(get fleet '{.metadata.generation}')
    pipeline fleet "  replicas: 3" | kubectl apply -f - >/dev/null
    same "$(get fleet '{.metadata.generation}')" "$generation"
}

s_read() { # a reader outside of the cluster: every position of an epoch once, the same from each worker and from no cluster at all
    local samples address
    samples=$(get fleet '{.status.samplesPerEpoch.train}')
    pipeline fleet | sed '/credentialsSecretRef/s/, credentialsSecretRef: {name: s3-keys}//' >"$work/local.yaml"
    local start; for ((start = 0; start < samples; start += 32)); do echo "$start-$((start + 32 < samples ? start + 32 : samples))"; done >"$work/ranges"
    AWS_ACCESS_KEY_ID=e2e AWS_SECRET_ACCESS_KEY=e2e-secret bash -c 'while read -r range; do "$0" get "$1" "$range"; done <"$2"' "$programs/feedmill" "$work/local.yaml" "$work/ranges" |
        awk '$1 ~ /^[0-9]+$/ {print $1, $7}' >"$work/local"
    same "$(wc -l <"$work/local")" "$samples" "positions, without a cluster"
    for address in $(addresses fleet); do
        while read -r range; do hashes "$address" "$range"; done <"$work/ranges" >"$work/read"
        cmp "$work/local" "$work/read"
    done
    say "$samples positions, the same from 3 workers and from this machine"
}

s_refused() { # contradictions are refused when they are applied, with the field
    local count=0 edit field answer
    pipeline wrong | kubectl create --dry-run=client -o json -f - >"$work/wrong.json"
    while read -r field edit; do
        if answer=$(python3 "$here/edit.py" "$edit" <"$work/wrong.json" | kubectl apply --dry-run=server -f - 2>&1); then
            say "not refused: $edit"
            return 1
        fi
        [[ $answer == *"$field"* ]] || { say "$edit: the field $field is not named: $answer"; return 1; }
        count=$((count + 1))
    done <"$here/refused.txt"
    say "$count refused"
    [ "$count" -ge 20 ]
}

s_edits() { # what may change while workers run
    local count=0 edit
    pipeline fleet "  replicas: 3" | kubectl create --dry-run=client -o json -f - >"$work/fleet.json"
    while read -r edit; do
        python3 "$here/edit.py" "$edit" <"$work/fleet.json" | kubectl apply --dry-run=server -f - >/dev/null || { say "refused: $edit"; return 1; }
        count=$((count + 1))
    done <"$here/edits.txt"
    say "$count accepted"
    [ "$count" -ge 10 ]
}

s_scale() { # 2 → 6 → 2 by kubectl scale; the rest stays spread and is not touched
    local t before
    k scale dpl/fleet --replicas=2 >/dev/null
    until_ok 90 "2 workers" ready_is fleet 2
    before=$(live fleet | awk '{print $2}' | sort)
    t=$(date +%s%N)
    k scale dpl/fleet --replicas=6 >/dev/null
    until_ok 120 "6 workers" ready_is fleet 6
    say "2 → 6 in $(seconds "$t") s: $(spread fleet)"
    same "$(spread fleet)" "n1=2 n2=2 n3=2"
    same "$(comm -12 <(echo "$before") <(live fleet | awk '{print $2}' | sort) | wc -l)" 2 "workers that stayed"
    # Whoever remains answers while the others drain.
    t=$(date +%s%N)
    k scale dpl/fleet --replicas=2 >/dev/null
    until_ok 120 "2 workers" ready_is fleet 2
    say "6 → 2 in $(seconds "$t") s: $(spread fleet)"
    same "$(spread fleet | tr ' ' '\n' | cut -d= -f2 | sort -u)" 1 "workers a node"
    hashes "$(addresses fleet | head -1)" 0-8 | cmp - <(head -8 "$work/local")
    same "$(get fleet '{.spec.replicas}')" 2
    # The Deployment's number has one writer.
    same "$(k get deploy fleet-worker -o json --show-managed-fields | python3 -c '
import json, sys
for entry in json.load(sys.stdin)["metadata"]["managedFields"]:
    if "f:replicas" in entry["fieldsV1"].get("f:spec", {}): print(entry["manager"])')" feedmill-operator-size
}

s_stream() { # another stream: refused while workers run, allowed while suspended
    local answer plan
    plan=$(get fleet '{.status.planDigests.train}')
    answer=$(SEED=43 pipeline fleet "  replicas: 2" | kubectl apply -f - 2>&1) && { say "not refused"; return 1; }
    [[ $answer == *spec.streams*suspend* ]] || { say "$answer"; return 1; }
    k patch dpl fleet --type merge -p '{"spec": {"suspend": true}}' >/dev/null
    until_ok 120 "no workers" ready_is fleet 0
    is fleet Suspended True
    until_ok 30 "the plan to be forgotten" bash -c "! kubectl -n $team get configmap fleet-plan"
    SEED=43 pipeline fleet "  replicas: 2" | kubectl apply -f - >/dev/null
    k patch dpl fleet --type merge -p '{"spec": {"suspend": false}}' >/dev/null
    k wait --for=condition=Ready dpl/fleet --timeout=120s >/dev/null
    until_ok 30 "a plan" is fleet PlanConsistent True
    [ "$(get fleet '{.status.planDigests.train}')" != "$plan" ] || { say "the same plan"; return 1; }
}

s_overwritten() { # a manifest is overwritten: who comes new stays unready, who serves goes on
    local pod served manifest=$work/s3/quickstart/data/captions.jsonl
    read -r pod _ _ _ < <(live fleet)
    served=$(live fleet | awk -v gone="$pod" '$1 != gone {print $4}')
    cp "$manifest" "$work/kept"
    head -n -1 "$work/kept" >"$manifest"
    k delete pod "$pod" --wait=false >/dev/null
    until_ok 90 "PlanConsistent=False" is fleet PlanConsistent False
    until_ok 30 "Ready=False" is fleet Ready PlanDiffers reason
    condition fleet Ready message | grep -q 'overwritten'
    hashes "$served" 0-8 >/dev/null
    cp "$work/kept" "$manifest"
    # It reads the data once; another start reads what was restored.
    k get pods -l feedmill.dev/pipeline=fleet -o name | while read -r name; do
        [ "$(k get "$name" -o 'jsonpath={.status.containerStatuses[0].ready}')" = true ] || k delete "$name" --wait=false >/dev/null
    done
    until_ok 90 "the fleet to be whole again" is fleet Ready True
}

s_conflict() { # somebody else's Service in the way
    k create service clusterip other --tcp=80 >/dev/null
    pipeline other | kubectl apply -f - >/dev/null
    until_ok 30 "NameConflict" is other Ready NameConflict reason
    same "$(k get service other -o 'jsonpath={.spec.clusterIP}' | grep -c None || true)" 0 "it was taken over"
    k delete service other >/dev/null
    k delete dpl other >/dev/null
}

s_image() { # an image that is not there: told, and the old workers serve on
    local before; before=$(live fleet | awk '{print $2}' | sort)
    k patch dpl fleet --type merge -p '{"spec": {"worker": {"image": "localhost/none:1"}}}' >/dev/null
    until_ok 60 "Degraded" is fleet Degraded ImagePullFailed reason
    is fleet Ready True
    same "$(comm -12 <(echo "$before") <(live fleet | awk '{print $2}' | sort) | wc -l)" 2 "old workers"
    k patch dpl fleet --type merge -p "{\"spec\": {\"worker\": {\"image\": \"$worker_image\"}}}" >/dev/null
    until_ok 90 "well again" is fleet Degraded False
}

s_leader() { # the leading operator dies: another acts within 20 s, and no worker is touched
    local before t leader
    before=$(live fleet | awk '{print $2}' | sort)
    leader=$(kubectl -n $system get lease feedmill -o 'jsonpath={.spec.holderIdentity}')
    kubectl -n $system delete pod "$leader" --grace-period=0 --force >/dev/null 2>&1
    t=$(date +%s%N)
    k scale dpl/fleet --replicas=3 >/dev/null
    until_ok 40 "a third worker" bash -c "[ \"\$(kubectl -n $team get deploy fleet-worker -o 'jsonpath={.spec.replicas}')\" = 3 ]"
    say "the next change was made after $(seconds "$t") s"
    until_ok 60 "3 workers" ready_is fleet 3
    same "$(comm -12 <(echo "$before") <(live fleet | awk '{print $2}' | sort) | wc -l)" 2 "workers that stayed"
}

s_upgrade() { # the chart with another default image replaces no worker
    pipeline plain "  replicas: 2" | grep -v ' image: ' | kubectl apply -f - >/dev/null
    k wait --for=condition=Ready dpl/plain --timeout=120s >/dev/null
    local before; before=$(live plain | awk '{print $2}' | sort)
    helm upgrade feedmill "$root/charts/feedmill" -n $system --wait --timeout 2m --reuse-values --set worker.image.tag=newer --set operator.podLabels.step=two >/dev/null
    until_ok 60 "UpToDate=False" is plain UpToDate False
    same "$(live plain | awk '{print $2}' | sort)" "$before" "workers"
    helm upgrade feedmill "$root/charts/feedmill" -n $system --wait --timeout 2m --reuse-values --set worker.image.tag=e2e >/dev/null
    until_ok 60 "UpToDate=True" is plain UpToDate True
    k delete dpl plain >/dev/null
}

s_steady() { # nothing happens: nothing is written
    until_ok 60 "to settle" is fleet Progressing False
    sleep 15
    local before after
    before=$(writes)
    sleep 60
    after=$(writes)
    say "$((after - before)) writes in a minute with one pipeline"
    [ $((after - before)) -lt 2 ]
}
writes() { # of all operators, leases apart
    kubectl -n $system get pods -l app.kubernetes.io/name=feedmill-operator -o 'jsonpath={range .items[*]}{.status.podIP}{"\n"}{end}' |
        while read -r address; do curl -sf -m 5 "http://$address:8080/metrics"; done | awk '/^feedmill_operator_writes_total/ {sum += $2} END {print sum + 0}'
}

s_delete() { # nothing is left
    k delete dpl --all --timeout=60s >/dev/null
    until_ok 120 "everything to be gone" bash -c "[ -z \"\$(kubectl -n $team get deploy,svc,pdb,configmap,sa,networkpolicy,controllerrevision,pods -l app.kubernetes.io/managed-by=feedmill-operator -o name)\" ]"
    helm uninstall feedmill -n $system --wait >/dev/null
    # The definition is kept with the chart's default.
    kubectl get crd datapipelines.feedmill.dev -o name >/dev/null
}

all="install apply read refused edits scale stream overwritten conflict image leader upgrade steady delete"

# ------------------------------------------------------------ run

dump() {
    say "---- what was there"
    kubectl get dpl -A -o yaml || true
    kubectl get pods -A -o wide || true
    kubectl get events -A --sort-by=.lastTimestamp | tail -40 || true
    kubectl -n $system logs -l app.kubernetes.io/name=feedmill-operator --tail=60 --prefix || true
    k logs -l app.kubernetes.io/component=worker --tail=20 --prefix || true
}
finish() {
    local code=$?
    [ ! -e "$work/s3.pid" ] || kill "$(cat "$work/s3.pid")" 2>/dev/null || true
    rm -rf "$work"
    exit $code
}
trap finish EXIT

passed=0
begun=$(date +%s%N)
prepare
for scenario in ${*:-$all}; do
    t=$(date +%s%N)
    # In a shell of its own, which its first failing line ends; not as a condition, where no line would.
    set +e
    (set -e; "s_$scenario") >"$work/out" 2>&1
    code=$?
    set -e
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
