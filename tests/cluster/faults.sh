# What goes wrong around a fleet; read by e2e.sh.

leader() { kubectl -n $system get lease feedmill -o 'jsonpath={.spec.holderIdentity}'; }
restarts() { kubectl -n $system get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount}'; }

s_leader() { # the leading operator freezes: another acts within 20 s, no worker is touched, and the first gives up when it can move again
    local before t leader took restarts
    sized fleet 2
    before=$(uids fleet)
    leader=$(leader)
    restarts=$(restarts "$leader")
    "$here/cluster" freeze "$leader" $system
    t=$(date +%s)
    k scale dpl/fleet --replicas=3 >/dev/null
    until_ok 40 "a third worker" wanted_is fleet 3
    took=$(($(date +%s) - t))
    say "the next change was made after $took s"
    [ "$took" -le 20 ] || { say "that is more than 20 s"; "$here/cluster" thaw "$leader" $system; return 1; }
    "$here/cluster" thaw "$leader" $system
    until_ok 60 "the former leader to give up" answers $((restarts + 1)) restarts "$leader"
    [ "$(leader)" != "$leader" ] || { say "$leader leads again"; return 1; }
    until_ok 60 "3 workers" ready_is fleet 3
    same "$(both "$before" "$(uids fleet)")" 2 "workers that stayed"
}

s_operator_down() { # no operator for a while: workers serve on, those that die are replaced; it catches up afterwards
    local gone steps
    sized fleet 2
    kubectl -n $system scale deploy feedmill --replicas=0 >/dev/null
    until_ok 60 "no operator" nothing kubectl -n $system get pods -l app.kubernetes.io/name=feedmill-operator -o name
    pull fleet
    k scale dpl/fleet --replicas=3 >/dev/null
    read -r gone _ < <(live fleet)
    k delete pod "$gone" --wait=false >/dev/null
    until_ok 60 "2 workers, by the Deployment alone" answers 2 k get deploy fleet-worker -o 'jsonpath={.status.readyReplicas}'
    steps=$(wc -l <"$work/pull.out")
    went_on() { [ "$(wc -l <"$work/pull.out")" -ge $((steps + 100)) ]; }
    until_ok 90 "100 more steps of the ranks" went_on
    same "$(wanted fleet)" 2 "nobody acts"
    kubectl -n $system scale deploy feedmill --replicas=2 >/dev/null
    whole fleet 3
    pulled
}

s_api_server() { # the API server is gone for some seconds, then for longer than a lease lasts: no worker is touched, and the next change is made
    local before t away workers
    sized fleet 2
    before=$(uids fleet)
    pull fleet
    while read -r away workers; do
        "$here/cluster" kill kube-apiserver
        sleep "$away"
        "$here/cluster" start kube-apiserver
        until_ok 60 "the API server" kubectl get --raw /readyz
        t=$(date +%s%N)
        until_ok 30 "the scale to be written" k scale dpl/fleet --replicas="$workers"
        until_ok 60 "the next change after $away s" wanted_is fleet "$workers"
        say "$away s without an API server: the next change was made $(seconds "$t") s after it was back"
    done <<<$'3 3\n20 2'
    whole fleet 2
    same "$(both "$before" "$(uids fleet)")" 2 "workers that stayed"
    pulled
}

# The folder in the cgroup hierarchy of memory of a pod's worker.
memory_of() { # POD
    local node id
    read -r node id < <(k get pod "$1" -o 'jsonpath={.spec.nodeName} {.status.containerStatuses[0].containerID}{"\n"}')
    find "/sys/fs/cgroup/memory/feedmill/$node" -type d -name "${id#*://}"
}

s_out_of_memory() { # a worker is killed for its memory: told, started again, and the ranks go on
    local before pod folder node address asks start
    sized fleet 1
    before=$(live fleet | awk '{print $1}')
    sized fleet 2
    # The new one: an old one has all the memory that it will ever need.
    read -r pod _ node address < <(live fleet | grep -v "^$before ")
    folder=$(memory_of "$pod")
    # What it has, and a little more: pictures do not fit.
    echo $(($(cat "$folder/memory.usage_in_bytes") + (1 << 20))) >"$folder/memory.limit_in_bytes"
    pull fleet
    (for start in 300 364 428 492 556; do curl -s -m 60 -o /dev/null "http://$address:8470/v1/streams/train/batches/$start-$((start + 64))" || true; done) &
    asks=$!
    until_ok 240 "the kill" answers 1 k get pod "$pod" -o 'jsonpath={.status.containerStatuses[0].restartCount}'
    wait "$asks"
    same "$(k get pod "$pod" -o 'jsonpath={.status.containerStatuses[0].lastState.terminated.reason}')" OOMKilled
    whole fleet 2
    # Also when it is back sooner than anybody looks.
    until_ok 60 "it to be told" some k get events --field-selector involvedObject.kind=DataPipeline,reason=OutOfMemory -o name
    is fleet Degraded OutOfMemory reason || { say "Degraded is $(condition fleet Degraded reason)"; return 1; }
    pulled
}

s_evicted() { # one is evicted, another fills its disk: both are replaced, and what is left of them is no part of the fleet
    local pod node uid folder
    sized fleet 2
    pull fleet
    read -r pod _ < <(live fleet)
    kubectl create --raw "/api/v1/namespaces/$team/pods/$pod/eviction" -f - >/dev/null <<<"{\"apiVersion\": \"policy/v1\", \"kind\": \"Eviction\", \"metadata\": {\"name\": \"$pod\", \"namespace\": \"$team\"}}"
    going() { local out; out=$(k get pod "$1" -o 'jsonpath={.metadata.deletionTimestamp}' 2>&1) && [ -n "$out" ] || [[ $out == *NotFound* ]]; }
    until_ok 30 "it to go" going "$pod"
    whole fleet 2
    read -r pod uid node _ < <(live fleet)
    folder=$("$here/cluster" folder "$node")/var/lib/kubelet/pods/$uid/volumes/kubernetes.io~empty-dir/cache
    # The limit is 1Gi; the blocks are reserved and not written.
    fallocate -l 1100M "$folder/filler"
    # Failed, or Succeeded where the worker has ended well before the kubelet writes that.
    over() { [[ $(k get pod "$1" -o 'jsonpath={.status.phase}') =~ ^(Failed|Succeeded)$ ]]; }
    until_ok 180 "the kubelet to evict it" over "$pod"
    say "$(k get events --field-selector "reason=Evicted,involvedObject.name=$pod" -o 'jsonpath={.items[*].message}')"
    whole fleet 2
    pulled
    # Nobody takes it away.
    k delete pod "$pod" >/dev/null
}

spread_again() { # PIPELINE: a worker is moved to the node that has none
    local t; t=$(date +%s%N)
    stands_on() { [ "$(spread "$1")" = "n1=1 n2=1 n3=1" ]; }
    until_ok 180 "the workers to be spread again" stands_on "$1"
    whole "$1" 3
    told "$1" SpreadSatisfied True
    say "spread again after $(seconds "$t") s"
}

s_drained() { # a node is drained under the disruption budget, and comes back
    local t
    sized fleet 3
    pull fleet
    t=$(date +%s%N)
    kubectl drain n1 --ignore-daemonsets --delete-emptydir-data --timeout=120s >/dev/null 2>&1 || { say "the drain did not end"; return 1; }
    say "drained in $(seconds "$t") s"
    whole fleet 3
    [[ "$(spread fleet)" != *n1=* ]] || { say "$(spread fleet)"; return 1; }
    # A node that takes none counts for nothing.
    told fleet SpreadSatisfied True
    kubectl uncordon n1 >/dev/null
    spread_again fleet
    pulled
}

lost() { # AWAY BACK NODE: its workers are made elsewhere, ranks have no error, and the rest of them goes when it is back
    local t node=$3
    k scale dpl/fleet --replicas=3 >/dev/null
    spread_again fleet
    pull fleet
    t=$(date +%s%N)
    "$here/cluster" "$1" "$node"
    until_ok 60 "$node to be NotReady" node_is "$node" Unknown
    say "NotReady after $(seconds "$t") s"
    until_ok 120 "3 workers elsewhere" serving_elsewhere fleet 3 "$node"
    until_ok 60 "Ready" ready_is fleet 3
    say "3 workers serve after $(seconds "$t") s: $(spread fleet)"
    "$here/cluster" "$2" "$node"
    until_ok 60 "$node to be Ready" node_is "$node" True
    until_ok 120 "those that stood there to be gone" count_is 3 pods -l feedmill.dev/pipeline=fleet
    spread_again fleet
    pulled
}
s_node_dies() { lost kill start n2; }         # a node loses power
s_partitioned() { lost partition heal n3; }   # a node is cut off; its workers run on there meanwhile, and not twice afterwards

s_namespace() { # a namespace is deleted in the middle of a rollout: it goes, and nothing is tried again and again
    local t errors
    kubectl create namespace gone >/dev/null
    team=gone secret s3-keys | kubectl create -f - >/dev/null
    pipeline going "  replicas: 2
  drainSeconds: 5" | sed "s/namespace: $team/namespace: gone/" | kubectl apply -f - >/dev/null
    kubectl -n gone wait --for=condition=Ready dpl/going --timeout=120s >/dev/null
    rolling() { local out; out=$(kubectl -n gone get pods -o name) && [ "$(wc -l <<<"$out")" -ge 3 ]; }
    kubectl -n gone annotate dpl going feedmill.dev/restart-at=now >/dev/null
    until_ok 30 "the rollout" rolling
    t=$(date +%s%N)
    kubectl delete namespace gone --timeout=120s >/dev/null
    say "gone after $(seconds "$t") s"
    errors=$(errors)
    sleep 15
    same "$(errors)" "$errors" "errors in 15 s"
}
errors() { # of all operators
    operators | while read -r address; do curl -sf -m 5 "http://$address:8080/metrics"; done |
        awk '/^feedmill_operator_reconcile_duration_seconds_count.*result="error"/ {sum += $2} END {print sum + 0}'
}
