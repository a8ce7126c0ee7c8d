# What is measured on a cluster, and not part of the tests; read by e2e.sh. Give FEEDMILL_PROGRAMS the folder of release builds.

s_nic() { # the wall of one network card: workers packed on a node against spread over three; bytes as they are against fp32 tensors
    local limit=${NIC:-200mbit} node place steps=${STEPS:-60}
    for node in n1 n2 n3; do "$here/cluster" nic $node "$limit"; done
    for place in packed spread; do
        pipeline $place "  replicas: 3
$([ $place = spread ] || echo '  placement: {nodeSelector: {kubernetes.io/hostname: n1}}')" | sed 's/sharedMemory: 128Mi/sharedMemory: 512Mi/' | kubectl apply -f - >/dev/null
        k wait --for=condition=Ready dpl/$place --timeout=180s >/dev/null
        # Ranks that compute nothing want all that the network gives.
        "${resolve[@]}" "$ranks" --steps "$steps" --step-ms 0 --ranks 4 --micro-batch 4 --window 8 "http://$place.$team.svc.cluster.local:8470" >"$work/nic-$place.out"
        tail -1 "$work/nic-$place.out" >"$work/nic-$place.json"
        say "$place ($(spread $place)): $(field samples_a_second <"$work/nic-$place.json") samples/s, $(field bytes <"$work/nic-$place.json") bytes in $(field seconds <"$work/nic-$place.json") s"
        # The same ranks with a step that leaves the network of one node just too little time.
        "${resolve[@]}" "$ranks" --steps "$steps" --step-ms "${STEP_MS:-300}" --ranks 4 --micro-batch 4 --window 8 "http://$place.$team.svc.cluster.local:8470" >"$work/nic-$place.out"
        say "$place, steps of ${STEP_MS:-300} ms: waits $(tail -1 "$work/nic-$place.out" | field wait_ratio) of its time, $(tail -1 "$work/nic-$place.out" | field samples_a_second) samples/s"
    done
    local address layout rate first=""
    address=$(addresses packed | head -1)
    for layout in compact hf; do
        python3 "$here/reader.py" "$address" $layout 0 30 >"$work/nic-$layout.json"
        rate=$(field samples_a_second <"$work/nic-$layout.json")
        say "$layout from one node: $(cat "$work/nic-$layout.json")"
        # A step that leaves the network just enough time for bytes as they are.
        python3 "$here/reader.py" "$address" $layout "${LAYOUT_STEP_MS:-700}" 30 >"$work/nic-$layout.json"
        say "$layout, steps of ${LAYOUT_STEP_MS:-700} ms: waits $(field wait_ratio <"$work/nic-$layout.json") of its time"
        first=${first:-$rate}
    done
    say "compact makes $(awk -v a="$first" -v b="$rate" 'BEGIN{printf "%.2f", a / b}') times the samples of fp32"
    for node in n1 n2 n3; do "$here/cluster" nic $node off; done
    k delete dpl packed spread >/dev/null
}

s_line() { # what workers of a fifth of a core each give together: 1, 2, 4 of them
    local workers first="" rate
    pipeline line "  replicas: 1" | limited
    for workers in 1 2 4; do
        sized line $workers
        # Those before have the pictures of the epoch by now; the first steps are not counted by a rank that begins with full queues.
        "${resolve[@]}" "$ranks" --steps "$((workers * ${STEPS:-30}))" --step-ms 0 --ranks 4 --micro-batch 2 "http://line.$team.svc.cluster.local:8470" >"$work/line.out"
        rate=$(tail -1 "$work/line.out" | field samples_a_second)
        first=${first:-$rate}
        say "$workers workers: $rate samples/s, $(awk -v a="$rate" -v b="$first" 'BEGIN{printf "%.2f", a / b}') x one"
    done
    k delete dpl line >/dev/null
}
