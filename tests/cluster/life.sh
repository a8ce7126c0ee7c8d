# What a fleet goes through in its life, in this order; read by e2e.sh.

s_install() { # an earlier chart, with a fleet, is upgraded to the present one with another default image: no worker is replaced
    local before images="--set global.imageRegistry=localhost --set operator.image.tag=e2e --set operator.image.pullPolicy=Never"
    helm install feedmill "$here/chart-before" -n $system --wait --timeout 2m $images --set worker.image.tag=e2e >/dev/null
    kubectl wait --for=condition=Established crd/datapipelines.feedmill.dev --timeout=20s >/dev/null
    pipeline plain "  replicas: 2" | grep -v ' image: ' | kubectl apply -f - >/dev/null
    k wait --for=condition=Ready dpl/plain --timeout=120s >/dev/null
    before=$(uids plain)
    helm upgrade feedmill "$root/charts/feedmill" -n $system --wait --timeout 2m $images --set worker.image.tag=newer >/dev/null
    until_ok 60 "UpToDate=False" is plain UpToDate False
    same "$(uids plain)" "$before" workers
    kubectl explain dpl.spec.serving.tokenSecretRef >/dev/null
    helm upgrade feedmill "$root/charts/feedmill" -n $system --wait --timeout 2m --reuse-values --set worker.image.tag=e2e >/dev/null
    until_ok 60 "UpToDate=True" is plain UpToDate True
    same "$(uids plain)" "$before" workers
    k delete dpl plain >/dev/null
    same "$(kubectl -n $system get deploy feedmill -o 'jsonpath={.status.readyReplicas}')" 2
    kubectl explain dpl.spec.placement.spread.mode | grep OnePerNode >/dev/null
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
    same "$(k get dpl fleet --no-headers | awk '{print $2, $3, $4, $5, $6, $7}')" "True WorkersServe False 3 3 3"
    told fleet SpreadSatisfied True
    # Applied again it is the same object.
    local generation; generation=$(get fleet '{.metadata.generation}')
    pipeline fleet "  replicas: 3" | kubectl apply -f - >/dev/null
    same "$(get fleet '{.metadata.generation}')" "$generation"
}

s_read() { # a reader outside of the cluster: every position of an epoch once, the same from each worker and from no cluster at all
    local samples address
    samples=$(get fleet '{.status.samplesPerEpoch.train}')
    local start; for ((start = 0; start < samples; start += 32)); do echo "$start-$((start + 32 < samples ? start + 32 : samples))"; done >"$work/ranges"
    bash -c 'while read -r range; do "$0" get "$1" "$range"; done <"$2"' "$programs/feedmill" "$work/local.yaml" "$work/ranges" |
        awk '$1 ~ /^[0-9]+$/ {print $1, $7}' >"$work/local"
    same "$(wc -l <"$work/local")" "$samples" "positions, without a cluster"
    for address in $(addresses fleet); do
        while read -r range; do hashes "$address" "$range"; done <"$work/ranges" >"$work/read"
        cmp "$work/local" "$work/read"
    done
    say "$samples positions, the same from 3 workers and from this machine"
    # A trainer as a pod, which finds workers by the Service's name: an epoch, and as little right as is possible.
    local steps=$(((samples + 7) / 8))
    k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: trainer}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: trainer
    image: localhost/feedmill/ranks:e2e
    imagePullPolicy: Never
    args: ["--steps=$steps", "--step-ms=0", "--ranks=4", "--micro-batch=2", "http://fleet.$team.svc:8470"]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
Y
    trainer_ended() { local phase; phase=$(k get pod trainer -o 'jsonpath={.status.phase}') && [[ $phase =~ Succeeded|Failed ]]; }
    until_ok 120 "the trainer to end" trainer_ended
    same "$(k get pod trainer -o 'jsonpath={.status.phase}')" Succeeded "$(k logs trainer --tail=5)"
    same_chain "$steps" "$(k logs trainer --tail=1 | field chain)"
    say "a trainer pod read $(k logs trainer --tail=1 | field positions) positions at $(k logs trainer --tail=1 | field samples_a_second) samples/s"
    k delete pod trainer --wait=false >/dev/null
}

s_refused() { # contradictions are refused when they are applied, with the field; what may change while workers run is not
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
    [ "$count" -ge 20 ] || { say "fewer than 20"; return 1; }
    count=0
    pipeline fleet "  replicas: 3" | kubectl create --dry-run=client -o json -f - >"$work/fleet.json"
    while read -r edit; do
        python3 "$here/edit.py" "$edit" <"$work/fleet.json" | kubectl apply --dry-run=server -f - >/dev/null || { say "refused: $edit"; return 1; }
        count=$((count + 1))
    done <"$here/edits.txt"
    say "$count accepted"
    [ "$count" -ge 10 ] || { say "fewer than 10"; return 1; }
}

s_scale() { # 2 → 6 → 2 by kubectl scale while ranks pull; the rest stays spread and is not touched
    local t before
    pull fleet
    k scale dpl/fleet --replicas=2 >/dev/null
    until_ok 90 "2 workers" ready_is fleet 2
    before=$(uids fleet)
    t=$(date +%s%N)
    k scale dpl/fleet --replicas=6 >/dev/null
    until_ok 120 "6 workers" ready_is fleet 6
    say "2 → 6 in $(seconds "$t") s: $(spread fleet)"
    same "$(spread fleet)" "n1=2 n2=2 n3=2"
    same "$(both "$before" "$(uids fleet)")" 2 "workers that stayed"
    # Whoever remains answers while the others drain.
    t=$(date +%s%N)
    k scale dpl/fleet --replicas=2 >/dev/null
    until_ok 120 "2 workers" ready_is fleet 2
    say "6 → 2 in $(seconds "$t") s: $(spread fleet)"
    same "$(spread fleet | tr ' ' '\n' | cut -d= -f2 | sort -u)" 1 "workers a node"
    pulled
    same "$(get fleet '{.spec.replicas}')" 2
    # The Deployment's number has one writer.
    same "$(k get deploy fleet-worker -o json --show-managed-fields | python3 -c '
import json, sys
for entry in json.load(sys.stdin)["metadata"]["managedFields"]:
    if "f:replicas" in entry["fieldsV1"].get("f:spec", {}): print(entry["manager"])')" feedmill-operator-size
}

s_rollout() { # every worker is replaced while ranks pull; the new ones are spread among themselves
    local t before
    before=$(uids fleet)
    pull fleet
    t=$(date +%s%N)
    k scale dpl/fleet --replicas=3 >/dev/null
    k patch dpl fleet --type merge -p '{"spec": {"placement": {"spread": {"whenUnsatisfiable": "DoNotSchedule"}}, "worker": {"annotations": {"note": "two"}}}}' >/dev/null
    until_ok 30 "the rollout to begin" is fleet Progressing True
    whole fleet 3 180
    say "3 workers replaced in $(seconds "$t") s: $(spread fleet)"
    same "$(both "$before" "$(uids fleet)")" 0 "workers of the former template"
    same "$(spread fleet)" "n1=1 n2=1 n3=1"
    told fleet SpreadSatisfied True
    pulled
    sized fleet 2
}

s_stream() { # another stream: refused while workers run, allowed while suspended
    local answer plan
    plan=$(get fleet '{.status.planDigests.train}')
    answer=$(SEED=43 pipeline fleet "  replicas: 2" | kubectl apply -f - 2>&1) && { say "not refused"; return 1; }
    [[ $answer == *spec.streams*suspend* ]] || { say "$answer"; return 1; }
    k patch dpl fleet --type merge -p '{"spec": {"suspend": true}}' >/dev/null
    until_ok 120 "no workers" ready_is fleet 0
    told fleet Suspended True
    until_ok 30 "the plan to be forgotten" gone configmap fleet-plan
    SEED=43 pipeline fleet "  replicas: 2" | kubectl apply -f - >/dev/null
    k patch dpl fleet --type merge -p '{"spec": {"suspend": false}}' >/dev/null
    k wait --for=condition=Ready dpl/fleet --timeout=120s >/dev/null
    until_ok 30 "a plan" is fleet PlanConsistent True
    [ "$(get fleet '{.status.planDigests.train}')" != "$plan" ] || { say "the same plan"; return 1; }
    # An old trainer is refused by the digest, also by workers that have the same samples to give.
    same "$(code "http://$(addresses fleet | head -1):8470/v1/streams/train/batches/0-2" -H "feedmill-plan: $plan")" 409 "with the old plan"
    # Back again, suspended and resumed within a moment: the workers of the former stream end before there are new ones.
    local before; before=$(uids fleet)
    k patch dpl fleet --type merge -p '{"spec": {"suspend": true}}' >/dev/null
    pipeline fleet "  replicas: 2
  suspend: true" | kubectl apply -f - >/dev/null
    k patch dpl fleet --type merge -p '{"spec": {"suspend": false}}' >/dev/null
    until_ok 120 "the former plan again" answers "$plan" get fleet '{.status.planDigests.train}'
    whole fleet 2
    same "$(both "$before" "$(uids fleet)")" 0 "workers that stayed"
    told fleet PlanConsistent True
}

s_missing() { # a Secret that is not there, a quota that is too small: told with a remedy, and well once mended
    pipeline poor "  replicas: 1" | sed 's/s3-keys/not-there/' | kubectl apply -f - >/dev/null
    until_ok 120 "WorkerCannotStart" is poor Ready WorkerCannotStart reason
    condition poor Ready message | grep 'Secret not-there with access-key-id' >/dev/null
    secret not-there | k create -f - >/dev/null
    # The kubelet waits up to two minutes before it tries a volume again.
    until_ok 180 "Ready" is poor Ready True
    k create quota small --hard=pods=4 >/dev/null
    k scale dpl/poor --replicas=9 >/dev/null
    until_ok 60 "PodsRefused" is poor Ready PodsRefused reason
    condition poor Ready message | grep 'exceeded quota: small' >/dev/null
    k get events --field-selector involvedObject.name=poor,reason=PodsRefused -o name | grep . >/dev/null
    k delete quota small >/dev/null
    k delete dpl poor >/dev/null
    k delete secret not-there >/dev/null
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
    condition fleet Ready message | grep 'overwritten' >/dev/null
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

s_broken_image() { # an image that is not there: told, and the old workers serve on
    local before; before=$(uids fleet)
    k patch dpl fleet --type merge -p '{"spec": {"worker": {"image": "localhost/none:1"}}}' >/dev/null
    until_ok 60 "Degraded" is fleet Degraded ImagePullFailed reason
    told fleet Ready True
    same "$(both "$before" "$(uids fleet)")" 2 "old workers"
    k patch dpl fleet --type merge -p "{\"spec\": {\"worker\": {\"image\": \"$worker_image\"}}}" >/dev/null
    until_ok 90 "well again" is fleet Degraded False
    # The same template as before: nobody was replaced.
    whole fleet 2
    same "$(both "$before" "$(uids fleet)")" 2 "old workers, after all"
}

s_access() { # tokens and certificates come from Secrets, and change without a restart
    local san="DNS:safe.$team.svc.cluster.local" before address
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=e2e-authority -keyout "$work/ca.key" -out "$work/ca.crt" 2>/dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=safe -keyout "$work/tls.key" 2>/dev/null |
        openssl x509 -req -days 2 -CA "$work/ca.crt" -CAkey "$work/ca.key" -set_serial 1 -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\n' "$san") -out "$work/tls.crt" 2>/dev/null
    printf 'first-token-0123456789abcdef\n' >"$work/token"
    k create secret tls safe-tls --cert="$work/tls.crt" --key="$work/tls.key" >/dev/null
    k create secret generic safe-token --from-file=token="$work/token" >/dev/null
    pipeline safe "  replicas: 2
  serving: {tokenSecretRef: {name: safe-token}, tlsSecretRef: {name: safe-tls}}" | kubectl apply -f - >/dev/null
    # The kubelet's probes and the operator speak TLS as well.
    k wait --for=condition=Ready dpl/safe --timeout=120s >/dev/null
    until_ok 30 "a plan" is safe PlanConsistent True
    before=$(uids safe)
    ask() { "${resolve[@]}" "$ranks" --ranks 1 --micro-batch 2 --steps 2 --step-ms 0 --ca-file "$work/ca.crt" "$@" "https://safe.$team.svc.cluster.local:8470"; }
    ask --token-file "$work/token" >"$work/asked"
    address=$(addresses safe | head -1)
    same "$(code "https://$address:8470/v1/streams/train/batches/0-2")" 401 "without a token"
    same "$(code "http://$address:8470/v1/streams/train/batches/0-2")" 400 "without TLS: a hint and no data"
    # Another token: taken without a restart, once the kubelet has brought it.
    printf 'second-token-0123456789abcdef\n' >"$work/token"
    k create secret generic safe-token --from-file=token="$work/token" --dry-run=client -o yaml | kubectl -n $team replace -f - >/dev/null
    for address in $(addresses safe); do
        until_ok 150 "the second token to be admitted" answers 200 code "https://$address:8470/v1/streams/train/batches/0-2" -H "authorization: Bearer $(cat "$work/token")"
        same "$(code "https://$address:8470/v1/streams/train/batches/0-2" -H 'authorization: Bearer first-token-0123456789abcdef')" 401 "with the first token"
    done
    ask --token-file "$work/token" >"$work/asked"
    same "$(uids safe)" "$before" "workers"
    same "$(k get pods -l feedmill.dev/pipeline=safe -o 'jsonpath={.items[*].status.containerStatuses[*].restartCount}')" "0 0" restarts
    k delete dpl safe >/dev/null
    k delete secret safe-tls safe-token >/dev/null
}

mounted() { # PIPELINE FILE: what stands in a file of a volume of its first worker, as its node has it
    local uid node
    read -r _ uid node _ < <(live "$1")
    "$here/cluster" sh "$node" cat "/var/lib/kubelet/pods/$uid/volumes/kubernetes.io~$2"
}

s_keys() { # S3 keys are rotated without a restart: the old ones are refused by the storage, and workers go on
    local before admin="$("$root/tools/versitygw.sh")"
    admin() { ADMIN_ACCESS_KEY_ID=e2e ADMIN_SECRET_ACCESS_KEY=e2e-secret "$admin" admin --endpoint-url "http://$s3" "$@" >/dev/null; }
    admin create-user --access one --secret one-secret --role admin
    admin create-user --access two --secret two-secret --role admin
    secret rotated one | kubectl -n $team create -f - >/dev/null
    pipeline rotating "  replicas: 1" | sed 's/s3-keys/rotated/' | kubectl apply -f - >/dev/null
    k wait --for=condition=Ready dpl/rotating --timeout=120s >/dev/null
    before=$(uids rotating)
    hashes "$(addresses rotating)" 0-8 | cmp - <(local_hashes 1 8)
    secret rotated two | kubectl -n $team replace -f - >/dev/null
    until_ok 150 "the kubelet to bring the new keys" answers two mounted rotating projected/s3/access-key-id
    admin delete-user --access one
    # Positions that it has not made before: their images are fetched with the new keys.
    hashes "$(addresses rotating)" 100-116 | cmp - <(local_hashes 101 116)
    same "$(uids rotating)" "$before" "workers"
    same "$(k get pods -l feedmill.dev/pipeline=rotating -o 'jsonpath={.items[*].status.containerStatuses[*].restartCount}')" 0 restarts
    k delete dpl rotating >/dev/null
}

s_one_per_node() { # as many workers as nodes, and a rollout that goes on all the same
    local before
    pipeline alone "  replicas: 3
  placement: {spread: {mode: OnePerNode}}" | kubectl apply -f - >/dev/null
    k wait --for=condition=Ready dpl/alone --timeout=120s >/dev/null
    same "$(spread alone)" "n1=1 n2=1 n3=1"
    before=$(uids alone)
    k annotate dpl alone feedmill.dev/restart-at=now >/dev/null
    until_ok 30 "the rollout to begin" is alone Progressing True
    whole alone 3 240
    same "$(spread alone)" "n1=1 n2=1 n3=1"
    same "$(both "$before" "$(uids alone)")" 0 "workers that stayed"
    # A fourth finds no node, and that is told.
    k scale dpl/alone --replicas=4 >/dev/null
    until_ok 60 "Unschedulable" is alone Ready Unschedulable reason
    k delete dpl alone >/dev/null
}

s_steady() { # nothing happens: nothing is written
    until_ok 60 "to settle" is fleet Progressing False
    sleep 15
    local before after
    before=$(writes)
    sleep 60
    after=$(writes)
    say "$((after - before)) writes in a minute with one pipeline"
    [ $((after - before)) -lt 2 ] || { say "that is more than one"; return 1; }
}
operators() { kubectl -n $system get pods -l app.kubernetes.io/name=feedmill-operator -o 'jsonpath={range .items[*]}{.status.podIP}{"\n"}{end}'; }
writes() { # of all operators, leases apart
    operators | while read -r address; do curl -sf -m 5 "http://$address:8080/metrics"; done | awk '/^feedmill_operator_writes_total/ {sum += $2} END {print sum + 0}'
}

s_delete() { # without the chart pipelines and workers go on; without a pipeline nothing of it is left
    local before; before=$(uids fleet)
    helm uninstall feedmill -n $system --wait >/dev/null
    until_ok 60 "no operator" nothing kubectl -n $system get pods -o name
    kubectl get crd datapipelines.feedmill.dev -o name >/dev/null
    same "$(uids fleet)" "$before" workers
    hashes "$(addresses fleet | head -1)" 0-8 | cmp - <(local_hashes 1 8)
    k delete dpl --all --timeout=60s >/dev/null
    until_ok 120 "everything to be gone" nothing k get deploy,svc,pdb,configmap,sa,networkpolicy,controllerrevision,pods -l app.kubernetes.io/managed-by=feedmill-operator -o name
}

s_many() { # 200 nodes that only pretend: workers stand one on each, and 100 more next to them
    local t
    "$here/cluster" fake-nodes 200
    t=$(date +%s%N)
    pipeline many "  replicas: 200
  placement:
    spread: {whenUnsatisfiable: DoNotSchedule}
    nodeSelector: {type: kwok}
    tolerations: [{key: kwok.x-k8s.io/node, operator: Exists}]" | kubectl apply -f - >/dev/null
    placed() { answers "$2 $3" get many '{.status.readyReplicas} {.status.placement.nodes} {.status.placement.maxPerNode} {.status.placement.skew}'; }
    until_ok 180 "200 workers, one a node" placed many 200 "200 1 0"
    say "200 workers on 200 nodes after $(seconds "$t") s"
    t=$(date +%s%N)
    k scale dpl/many --replicas=300 >/dev/null
    until_ok 180 "300 workers, two a node at most" placed many 300 "200 2 1"
    say "100 more after $(seconds "$t") s"
    told many SpreadSatisfied True
    k delete dpl many >/dev/null
    until_ok 120 "them to be gone" nothing k get pods -l feedmill.dev/pipeline=many -o name
    "$here/cluster" fake-nodes 0
    until_ok 60 "the nodes to be gone" count_is_3_nodes
}
count_is_3_nodes() { answers 3 bash -c 'kubectl get nodes -o name | wc -l'; }
