# Who decides how many workers there are; read by e2e.sh.

# Workers that a fifth of a core limits: more of them do more, whatever this machine has, and ranks do not take thousands of samples.
limited() { sed 's/requests: {cpu: 50m}/requests: {cpu: 50m}, limits: {cpu: 200m}/' | kubectl apply -f - >/dev/null; }

s_internal() { # ranks that wait make a fleet grow, with a reason; when they are gone it stays, and says why
    local t
    pipeline grown "  replicas: 1
  autoscaling: {mode: Internal, minReplicas: 1, maxReplicas: 3}" | limited
    whole grown 1
    pull grown 0
    t=$(date +%s%N)
    until_ok 120 "3 workers to be wanted" wanted_is grown 3
    say "3 wanted after $(seconds "$t") s of ranks that wait: $(condition grown ScalingActive message)"
    until_ok 60 "the change to be told" some k get events --field-selector reason=ScaledUp,involvedObject.name=grown -o name
    whole grown 3
    pulled
    until_ok 90 "nobody to be seen pulling" is grown ScalingActive Quiet reason
    same "$(wanted grown)" 3 "workers wanted"
    same "$(get grown '{.spec.replicas}')" 1
    k get configmap grown-scaling >/dev/null
    k delete dpl grown >/dev/null
}

# What the last decision left to the next one, as it is kept.
kept() { k get configmap "$1-scaling" -o 'jsonpath={.data.state}' | field "$2"; }   # PIPELINE FIELD
kept_is() { local out; out=$(kept "$1" "$2") && [ "$out" -ge "$3" ]; }              # PIPELINE FIELD LEAST
decided() { # PIPELINE: by what ranks report, and not for want of it
    local out
    out=$(condition "$1" ScalingActive reason) && [[ $out =~ ^(Enough|Demand|Hungry|Sated|Bounds|WorkersWarming)$ ]]
}
shrunk() { k get events --field-selector "reason=ScaledDown,involvedObject.name=$1" -o 'jsonpath={.items[*].message}'; }

s_sated() { # ranks that never wait: after 30 windows the fleet becomes smaller, although the leader changes meanwhile, and no rank sees it
    local t windows leader
    pipeline sated "  replicas: 3
  autoscaling: {mode: Internal, minReplicas: 1, maxReplicas: 3}" | kubectl apply -f - >/dev/null
    whole sated 3
    pull sated 2000
    t=$(date +%s%N)
    until_ok 300 "8 windows of plenty" kept_is sated sated 8
    windows=$(kept sated sated)
    leader=$(leader)
    # Without a farewell, as when its node dies.
    "$here/cluster" freeze "$leader" $system
    another() { local out; out=$(leader) && [ "$out" != "$leader" ]; }
    until_ok 60 "another leader" another
    "$here/cluster" thaw "$leader" $system
    say "another leader after $windows windows of plenty"
    more() { local out; out=$(wanted sated) && [ "$out" -lt 3 ] || kept_is sated sated $((windows + 1)); }
    until_ok 120 "the windows to be counted on" more
    until_ok 400 "fewer workers to be wanted" eval '[ "$(wanted sated)" -lt 3 ]'
    say "$(wanted sated) wanted after $(seconds "$t") s: $(shrunk sated)"
    [[ $(shrunk sated) == *"queues have been full"* ]] || { say "$(shrunk sated)"; return 1; }
    whole sated "$(wanted sated)"
    pulled
    k delete dpl sated >/dev/null
}

seen_by_operators() { # -I | -D: no operator hears from a worker | they do again. Who takes a batch is not concerned.
    local pod
    kubectl -n $system get pods -l app.kubernetes.io/name=feedmill-operator -o name | while read -r pod; do
        "$here/cluster" net "${pod#pod/}" $system iptables -w "$1" OUTPUT -p tcp --dport 8470 -j DROP
    done
}

s_cut() { # the operator hears from no worker while ranks want all they can get: the size is held, and it says why
    pipeline cut "  replicas: 2
  autoscaling: {mode: Internal, minReplicas: 1, maxReplicas: 3, reports: {failureThreshold: 3}}" | limited
    whole cut 2
    pull cut 0
    until_ok 180 "3 workers to be wanted" wanted_is cut 3
    whole cut 3
    seen_by_operators -I
    told cut ScalingActive ReportsLost reason
    say "cut off: $(condition cut ScalingActive message)"
    told cut ScalingActive False
    until_ok 120 "the fallback" is cut ScalingActive Fallback reason
    say "after 3 windows: $(condition cut ScalingActive message)"
    same "$(wanted cut)" 3 "workers wanted"
    is cut Ready True || { say "Ready is $(condition cut Ready reason)"; return 1; }
    seen_by_operators -D
    until_ok 120 "ranks to be seen again" decided cut
    same "$(wanted cut)" 3 "workers wanted"
    same "$(shrunk cut)" "" "told"
    pulled
    k delete dpl cut >/dev/null
}

s_gone() { # trainings are over: the fleet becomes as small as it may after its time, and not before
    local t
    pipeline left "  replicas: 3
  autoscaling: {mode: Internal, minReplicas: 1, maxReplicas: 3, idleAfterSeconds: 60}" | kubectl apply -f - >/dev/null
    whole left 3
    pull left 500
    until_ok 120 "ranks to be seen" decided left
    pulled
    t=$(date +%s%N)
    told left ScalingActive Quiet reason
    same "$(wanted left)" 3 "workers wanted"
    until_ok 180 "1 worker to be wanted" wanted_is left 1
    say "1 wanted $(seconds "$t") s after the last step: $(shrunk left)"
    [[ $(shrunk left) == *"nobody has pulled"* ]] || return 1
    awk -v took="$(seconds "$t")" 'BEGIN{exit took < 60}' || { say "that is too early"; return 1; }
    whole left 1
    k delete dpl left >/dev/null
}

s_hpa() { # a HorizontalPodAutoscaler may read and write the scale; what it writes is held within the bounds
    k patch dpl fleet --type merge -p '{"spec": {"autoscaling": {"mode": "External", "minReplicas": 2, "maxReplicas": 3}}}' >/dev/null
    k scale dpl/fleet --replicas=9 >/dev/null
    until_ok 60 "3 workers, as the bounds say" ready_is fleet 3
    told fleet ScalingLimited True
    told fleet ScalingLimited MaxReplicas reason
    told fleet ScalingActive External reason
    k apply -f - >/dev/null <<Y
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: fleet}
spec:
  scaleTargetRef: {apiVersion: feedmill.dev/v1alpha1, kind: DataPipeline, name: fleet}
  minReplicas: 2
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
Y
    # There are no metrics here, so it never gets beyond reading the scale and its pods.
    until_ok 60 "the scale to be read" answers True k get hpa fleet -o 'jsonpath={.status.conditions[?(@.type=="AbleToScale")].status}'
    # Out of its bounds it acts without metrics: 9 was asked for, 3 are the most.
    until_ok 60 "the autoscaler to write 3" answers 3 get fleet '{.spec.replicas}'
    until_ok 30 "no limit any more" is fleet ScalingLimited False
    k delete hpa fleet >/dev/null
    k patch dpl fleet --type json -p '[{"op": "remove", "path": "/spec/autoscaling"}]' >/dev/null
    k scale dpl/fleet --replicas=2 >/dev/null
    whole fleet 2
}

figure() { # PIPELINE: how empty its emptiest queue is, as an autoscaler asks for it; nothing where it is not known
    local out
    out=$(kubectl get --raw "/apis/external.metrics.k8s.io/v1beta1/namespaces/$team/feedmill_trainer_queue_emptiness?labelSelector=pipeline%3D$1") &&
        python3 -c 'import json, sys; print(*[item["value"] for item in json.load(sys.stdin)["items"]])' <<<"$out"
}

prometheus=172.30.0.254:9099
prometheus_up() { # by $work/prometheus.yaml; it has the cluster's names
    local server
    # Brought before the tests; they fetch nothing.
    server=$("$root/tools/promtool.sh" prometheus --found) || { say "there is no prometheus"; return 1; }
    "${resolve[@]}" "$server" --config.file="$work/prometheus.yaml" --storage.tsdb.path="$work/prometheus" \
        --web.listen-address=$prometheus --log.level=warn >>"$work/prometheus.log" 2>&1 &
    echo $! >"$work/prometheus.pid"
}
prometheus_down() { kill "$(cat "$work/prometheus.pid")"; rm "$work/prometheus.pid"; }

s_external() { # Prometheus reads the operators, a HorizontalPodAutoscaler asks for the figure and writes the scale; both as the examples have it
    local t examples=$root/examples/kubernetes
    kubectl apply -f - >/dev/null <<Y
apiVersion: v1
kind: Service
metadata: {name: operators, namespace: $system}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app.kubernetes.io/name: feedmill-operator}, ports: [{name: metrics, port: 8080}]}
Y
    cat >"$work/prometheus.yaml" <<Y
global: {scrape_interval: 5s, scrape_timeout: 4s}
scrape_configs:
- job_name: feedmill
  honor_labels: true
  dns_sd_configs: [{names: [operators.$system.svc.cluster.local], type: A, port: 8080, refresh_interval: 5s}]
Y
    prometheus_up
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=adapter -addext "subjectAltName=DNS:adapter.$team.svc" \
        -keyout "$work/adapter.key" -out "$work/adapter.crt" 2>/dev/null
    python3 "$here/adapter.py" 172.30.0.254:6444 "$work/adapter.crt" "$work/adapter.key" "http://$prometheus" "$examples/prometheus-adapter.yaml" \
        >"$work/adapter.log" 2>&1 &
    echo $! >"$work/adapter.pid"
    kubectl apply -f - >/dev/null <<Y
apiVersion: v1
kind: Service
metadata: {name: adapter, namespace: $team}
spec: {ports: [{name: https, port: 443, targetPort: 6444}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: adapter, namespace: $team, labels: {kubernetes.io/service-name: adapter}}
addressType: IPv4
endpoints: [{addresses: [172.30.0.254], conditions: {ready: true}}]
ports: [{name: https, port: 6444, protocol: TCP}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: $(base64 -w0 "$work/adapter.crt")
  service: {name: adapter, namespace: $team, port: 443}
Y
    kubectl wait --for=condition=Available apiservice/v1beta1.external.metrics.k8s.io --timeout=60s >/dev/null
    # Without a limit: batches of a slow worker come in another order than they are asked for, and those that wait for the first count as a full queue.
    pipeline outer "  autoscaling: {mode: External, minReplicas: 1, maxReplicas: 3}" | kubectl apply -f - >/dev/null
    whole outer 1
    # Nobody reports, so there is no figure, and nothing to act on.
    until_ok 60 "an answer without a figure" nothing figure outer
    pull outer 0
    until_ok 90 "a figure" some figure outer
    t=$(date +%s%N)
    sed 's/name: qwen3vl-sft/name: outer/; s/pipeline: qwen3vl-sft/pipeline: outer/; s/minReplicas: 2/minReplicas: 1/; s/maxReplicas: 32/maxReplicas: 3/' "$examples/hpa-queue.yaml" |
        k apply -f - >/dev/null
    # Twice as many a minute, as the example says.
    until_ok 420 "3 workers to be wanted" wanted_is outer 3
    say "3 wanted by the autoscaler after $(seconds "$t") s: $(k get hpa outer --no-headers | xargs)"
    same "$(get outer '{.spec.replicas}')" 3
    told outer ScalingActive External reason
    whole outer 3
    # Two owners, and each keeps to its own: the scale is the autoscaler's, the rest is what is applied.
    pipeline outer "  autoscaling: {mode: External, minReplicas: 1, maxReplicas: 3}" | kubectl apply -f - >/dev/null
    same "$(get outer '{.spec.replicas}')" 3 "after it was applied again"
    # Prometheus is gone: no figure, no change.
    prometheus_down
    until_ok 90 "the autoscaler to miss its figure" answers False k get hpa outer -o 'jsonpath={.status.conditions[?(@.type=="ScalingActive")].status}'
    say "without Prometheus: $(k get hpa outer -o 'jsonpath={.status.conditions[?(@.type=="ScalingActive")].message}' | cut -c1-120)"
    same "$(wanted outer)" 3 "workers wanted"
    pulled
    kill "$(cat "$work/adapter.pid")"
    rm "$work/adapter.pid"
    k delete hpa,dpl outer >/dev/null
    kubectl delete apiservice v1beta1.external.metrics.k8s.io >/dev/null
    k delete service adapter >/dev/null
    kubectl -n $system delete service operators >/dev/null
}

trainer_says() { # WAIT FILL: what a trainer that does not report tells Prometheus
    printf 'trainer_wait{namespace="%s",pipeline="asked"} %s\ntrainer_fill{namespace="%s",pipeline="asked"} %s\n' "$team" "$1" "$team" "$2" >"$work/trainer/new"
    mv "$work/trainer/new" "$work/trainer/metrics.txt"
}

s_asked() { # the operator asks a Prometheus server, by queries that the pipeline does not choose, instead of the workers
    local t servers
    mkdir -p "$work/trainer"
    trainer_says 0.6 0
    python3 -m http.server --bind 172.30.0.254 --directory "$work/trainer" 9100 >/dev/null 2>&1 &
    echo $! >"$work/trainer.pid"
    cat >"$work/prometheus.yaml" <<Y
global: {scrape_interval: 5s, scrape_timeout: 4s}
scrape_configs:
- {job_name: trainer, metrics_path: /metrics.txt, static_configs: [{targets: ["172.30.0.254:9100"]}]}
Y
    prometheus_up
    servers='{"trainers": {"url": "http://'$prometheus'", "wait": "max(trainer_wait{namespace=\"$namespace\",pipeline=\"$pipeline\"})", "fill": "min(trainer_fill{namespace=\"$namespace\",pipeline=\"$pipeline\"})"}}'
    helm upgrade feedmill "$root/charts/feedmill" -n $system --wait --timeout 2m --reuse-values --set-json "operator.prometheus=$servers" >/dev/null
    pipeline asked "  replicas: 1
  autoscaling: {mode: Internal, minReplicas: 1, maxReplicas: 3, signal: {prometheus: trainers}, reports: {staleAfterSeconds: 30, failureThreshold: 3}}" | kubectl apply -f - >/dev/null
    whole asked 1
    t=$(date +%s%N)
    until_ok 180 "3 workers to be wanted" wanted_is asked 3
    say "3 wanted after $(seconds "$t") s: $(condition asked ScalingActive message)"
    whole asked 3
    trainer_says 0 1
    # Without a query for what would do, nothing makes it smaller.
    until_ok 60 "plenty to be seen" answers Enough condition asked ScalingActive reason
    prometheus_down
    told asked ScalingActive ReportsLost reason
    say "without Prometheus: $(condition asked ScalingActive message)"
    told asked ScalingActive False
    until_ok 120 "the fallback" is asked ScalingActive Fallback reason
    same "$(wanted asked)" 3 "workers wanted"
    prometheus_up
    until_ok 120 "an answer again" decided asked
    same "$(wanted asked)" 3 "workers wanted"
    # A name that the operator was not given.
    k patch dpl asked --type merge -p '{"spec": {"autoscaling": {"signal": {"prometheus": "others"}}}}' >/dev/null
    until_ok 60 "the name to be refused" is asked Ready InvalidSpec reason
    say "$(condition asked Ready message)"
    [[ $(condition asked Ready message) == *trainers* ]] || return 1
    k delete dpl asked >/dev/null
    prometheus_down
    kill "$(cat "$work/trainer.pid")"
    rm "$work/trainer.pid"
    helm upgrade feedmill "$root/charts/feedmill" -n $system --wait --timeout 2m --reset-then-reuse-values --set-json 'operator.prometheus.trainers=null' >/dev/null
}

s_shown() { # what the dashboard shows of a fleet that grows and shrinks again: all of its queries have answers, by series as the chart's PodMonitors have them scraped
    local begun chart=$root/charts/feedmill
    helm template feedmill "$chart" -n $system --set metrics.podMonitor=true -s templates/monitor.yaml |
        kubectl label --local -f - -o json read=yes >"$work/monitors.json"
    rm -rf "$work/prometheus" "$work/prometheus.yaml"
    python3 "$here/monitors.py" "$work/monitors.json" "$work/prometheus.yaml" "$chart/rules/feedmill.yaml" >"$work/monitors.log" 2>&1 &
    echo $! >"$work/monitors.pid"
    until_ok 30 "the pods to scrape" test -e "$work/prometheus.yaml.1.json"
    prometheus_up
    begun=$(date +%s)
    pipeline shown "  replicas: 1
  autoscaling: {mode: Internal, minReplicas: 1, maxReplicas: 3, reports: {failureThreshold: 3}}" | limited
    whole shown 1
    pull shown 0
    until_ok 120 "3 workers to be wanted" wanted_is shown 3
    whole shown 3
    # Long enough to be seen. Meanwhile the storage goes away for a moment, which is no error to a rank.
    sleep 20
    kill -9 "$(cat "$work/s3.pid")"
    sleep 5
    storage_up
    sleep 25
    let_go
    # A training that needs a part of them.
    pull shown 2000
    until_ok 300 "1 worker to be wanted" wanted_is shown 1
    whole shown 1
    sleep 30
    NAMESPACE=$team PIPELINE=shown python3 "$here/dashboard.py" "http://$prometheus" "$begun" "$(date +%s)" "$work/dashboard.html" \
        ${FEEDMILL_WRITE_SCREENSHOTS:+"$root/docs/images/dashboard.png"}
    pulled
    prometheus_down
    kill "$(cat "$work/monitors.pid")"
    rm "$work/monitors.pid"
    k delete dpl shown >/dev/null
}
