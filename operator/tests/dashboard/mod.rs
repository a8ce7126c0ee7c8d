//! Takes nothing, gives the Grafana dashboard: rows of panels from what hurts to why.

use serde_json::{Value, json};

/// Which pipelines are looked at.
const CHOSEN: &str = r#"namespace=~"$namespace", pipeline=~"$pipeline""#;
/// The width of a dashboard, in Grafana's columns.
const COLUMNS: usize = 24;
/// The height of a panel, in Grafana's lines.
const HEIGHT: usize = 8;

/// Counts a minute, of what is rare: a line of "0.07 a second" tells nobody anything. They are bars, one on the other.
const RARE: &str = "cpm";

/// What is drawn: expressions, each with the words of its legend.
type Drawn = &'static [(&'static str, &'static str)];

/// One panel. `CHOSEN` in an expression is which pipelines are looked at, `RATE` the span of rates.
struct Panel {
    title: &'static str,
    /// What it means and where to look on.
    description: &'static str,
    /// As Grafana names units; it also decides how far the axis goes and what is drawn.
    unit: &'static str,
    drawn: Drawn,
}

const TRAINERS: &[Panel] = &[
    Panel {
        title: "GPUs wait",
        description: "The largest share of its time that a rank waits for data. Above 10 % for 10 minutes is an alert.",
        unit: "percentunit",
        drawn: &[(
            "max by (namespace, pipeline) (feedmill_trainer_wait_ratio{CHOSEN})",
            "{{namespace}}/{{pipeline}}",
        )],
    },
    Panel {
        title: "Emptiest queue",
        description: "How full the emptiest queue of a rank is. Empty queues come before waiting.",
        unit: "percentunit",
        drawn: &[(
            "min by (namespace, pipeline) (feedmill_trainer_queue_fill{CHOSEN})",
            "{{namespace}}/{{pipeline}}",
        )],
    },
    Panel {
        title: "Ranks that report",
        description: "Ranks of trainings with a report younger than 15 seconds.",
        unit: "short",
        drawn: &[(
            "max by (namespace, pipeline) (feedmill_reporting_ranks{CHOSEN})",
            "{{namespace}}/{{pipeline}}",
        )],
    },
];

const WORKERS: &[Panel] = &[
    Panel {
        title: "Workers",
        description: "Those that are wanted and those that serve.",
        unit: "short",
        drawn: &[
            (
                "max by (namespace, pipeline) (feedmill_desired_workers{CHOSEN})",
                "{{namespace}}/{{pipeline}} wanted",
            ),
            (
                "max by (namespace, pipeline) (feedmill_ready_workers{CHOSEN})",
                "{{namespace}}/{{pipeline}} serve",
            ),
        ],
    },
    Panel {
        title: "Why there are so many",
        description: "Decisions on the number of workers a minute, by reason; in mode Internal, six for each pipeline.",
        unit: RARE,
        drawn: &[(
            "60 * sum by (reason) (rate(feedmill_scaling_decisions_total{CHOSEN}[RATE])) > 0",
            "{{reason}}",
        )],
    },
    Panel {
        title: "Conditions that are not as they should be",
        description: "1 while a condition says that something is wrong.",
        unit: "short",
        drawn: &[
            (
                "max by (namespace, pipeline, type) (feedmill_pipeline_condition{CHOSEN, type=~\"Ready|SourceReady|PlanConsistent|\
                 UpToDate|SpreadSatisfied\", status=\"false\"}) > 0",
                "{{namespace}}/{{pipeline}} not {{type}}",
            ),
            (
                "max by (namespace, pipeline, type) (feedmill_pipeline_condition{CHOSEN, type=~\"Degraded|ScalingLimited|Suspended\", \
                 status=\"true\"}) > 0",
                "{{namespace}}/{{pipeline}} {{type}}",
            ),
        ],
    },
];

const BATCHES: &[Panel] = &[
    Panel {
        title: "Samples",
        description: "Samples a second that are handed to trainers.",
        unit: "cps",
        drawn: &[(
            "sum by (namespace, pipeline) (rate(feedmill_worker_samples_total{CHOSEN}[RATE]))",
            "{{namespace}}/{{pipeline}}",
        )],
    },
    Panel {
        title: "Bytes to trainers",
        description: "Bytes of batches a second.",
        unit: "Bps",
        drawn: &[(
            "sum by (namespace, pipeline) (rate(feedmill_worker_sent_bytes_total{CHOSEN}[RATE]))",
            "{{namespace}}/{{pipeline}}",
        )],
    },
    Panel {
        title: "Bytes to trainers, by worker",
        description: "One that gives much less than others is slow, or new.",
        unit: "Bps",
        drawn: &[("sum by (pod) (rate(feedmill_worker_sent_bytes_total{CHOSEN}[RATE]))", "{{pod}}")],
    },
    Panel {
        title: "Connections",
        description: "Open connections to workers.",
        unit: "short",
        drawn: &[("sum by (pod) (feedmill_worker_connections{CHOSEN})", "{{pod}}")],
    },
    Panel {
        title: "Ranges that are waited for",
        description: "Ranges asked for and not answered yet: the queue before workers.",
        unit: "short",
        drawn: &[("sum by (pod) (feedmill_worker_ranges_waiting{CHOSEN})", "{{pod}}")],
    },
    Panel {
        title: "Answers cut",
        description: "Answers a minute that were cut because their reader was too slow.",
        unit: RARE,
        drawn: &[(
            "60 * sum by (namespace, pipeline) (rate(feedmill_worker_overdue_leases_total{CHOSEN}[RATE]))",
            "{{namespace}}/{{pipeline}}",
        )],
    },
];

const LIMITS: &[Panel] = &[
    Panel {
        title: "CPU",
        description: "How busy the workers' threads are. At 100 % more workers help.",
        unit: "percentunit",
        drawn: &[(
            "sum by (namespace, pipeline) (rate(feedmill_worker_cpu_busy_seconds_total{CHOSEN}[RATE])) / \
             sum by (namespace, pipeline) (feedmill_worker_cpu_threads{CHOSEN})",
            "{{namespace}}/{{pipeline}}",
        )],
    },
    Panel {
        title: "CPU by stage",
        description: "Threads that work on each stage: record (text), size (headers of pictures), fill (pixels), hash.",
        unit: "short",
        drawn: &[(
            "sum by (stage) (rate(feedmill_worker_stage_busy_seconds_total{CHOSEN}[RATE]))",
            "{{stage}}",
        )],
    },
    Panel {
        title: "Queues",
        description: "What waits: for threads, for storage, and samples on their way.",
        unit: "short",
        drawn: &[
            ("sum(feedmill_worker_cpu_jobs_pending{CHOSEN})", "jobs for threads"),
            ("sum(feedmill_worker_fetches_waiting{CHOSEN})", "requests to storage"),
            ("sum(feedmill_worker_samples_in_flight{CHOSEN})", "samples on their way"),
        ],
    },
    Panel {
        title: "Memory budgets in use",
        description: "The fullest worker. A full arena is as it should be: it is where finished batches wait.",
        unit: "percentunit",
        drawn: &[(
            "max by (budget) (feedmill_worker_budget_used_bytes{CHOSEN} / feedmill_worker_budget_bytes{CHOSEN})",
            "{{budget}}",
        )],
    },
    Panel {
        title: "Work that waits for memory",
        description: "Bytes that are waited for before a budget. Much before fetch or decode: raise spec.cache.",
        unit: "bytes",
        drawn: &[("sum by (budget) (feedmill_worker_budget_waiting_bytes{CHOSEN})", "{{budget}}")],
    },
    Panel {
        title: "Storage: time of a request",
        description: "Of requests that succeed.",
        unit: "s",
        drawn: &[
            (
                "histogram_quantile(0.5, sum by (le) (rate(feedmill_worker_fetch_seconds_bucket{CHOSEN}[RATE])))",
                "half are quicker",
            ),
            (
                "histogram_quantile(0.99, sum by (le) (rate(feedmill_worker_fetch_seconds_bucket{CHOSEN}[RATE])))",
                "99 of 100 are quicker",
            ),
        ],
    },
    Panel {
        title: "Storage: bytes",
        description: "Bytes a second that are fetched.",
        unit: "Bps",
        drawn: &[(
            "sum by (namespace, pipeline) (rate(feedmill_worker_fetched_bytes_total{CHOSEN}[RATE]))",
            "{{namespace}}/{{pipeline}}",
        )],
    },
    Panel {
        title: "Storage: requests at once",
        description: "The limit falls when storage throttles: then more workers do not help.",
        unit: "short",
        drawn: &[
            ("sum(feedmill_worker_fetches_in_flight{CHOSEN})", "in flight"),
            ("sum(feedmill_worker_fetch_limit{CHOSEN})", "allowed"),
        ],
    },
    Panel {
        title: "Storage: attempts that failed",
        description: "Attempts a minute that failed for now and are made again.",
        unit: RARE,
        drawn: &[(
            "60 * sum by (kind) (rate(feedmill_worker_fetch_failed_attempts_total{CHOSEN}[RATE]))",
            "{{kind}}",
        )],
    },
];

const DATA: &[Panel] = &[
    Panel {
        title: "Bad samples",
        description: "Of all samples that were tried. Above 1 % for 15 minutes is an alert.",
        // Few of all: on an axis to 100 % they would not be seen.
        unit: "percent",
        // Where none was bad yet there is no series of bad ones, which is 0.
        drawn: &[(
            "100 - 100 * sum by (namespace, pipeline) (rate(feedmill_worker_stage_runs_total{CHOSEN, stage=\"fill\"}[RATE])) / \
             (sum by (namespace, pipeline) (rate(feedmill_worker_stage_runs_total{CHOSEN, stage=\"fill\"}[RATE])) + \
             (sum by (namespace, pipeline) (rate(feedmill_worker_bad_records_total{CHOSEN}[RATE])) or \
             0 * sum by (namespace, pipeline) (rate(feedmill_worker_stage_runs_total{CHOSEN, stage=\"fill\"}[RATE]))))",
            "{{namespace}}/{{pipeline}}",
        )],
    },
    Panel {
        title: "Bad records by class",
        description: "Bad records a minute, by data set and class; docs/data.md says what to do about each class.",
        unit: RARE,
        drawn: &[(
            "60 * sum by (dataset, class) (rate(feedmill_worker_bad_records_total{CHOSEN}[RATE])) > 0",
            "{{dataset}} {{class}}",
        )],
    },
    Panel {
        title: "Objects that cannot be had",
        description: "Objects a minute that do not exist, and requests that storage refuses.",
        unit: RARE,
        drawn: &[
            ("60 * sum(rate(feedmill_worker_fetch_missing_total{CHOSEN}[RATE]))", "missing"),
            ("60 * sum(rate(feedmill_worker_fetch_denied_total{CHOSEN}[RATE]))", "refused"),
        ],
    },
    Panel {
        title: "Lethal records",
        description: "Records that kill the process that makes them. One is an alert.",
        unit: "short",
        drawn: &[(
            "max by (namespace, pipeline) (feedmill_worker_lethal_records{CHOSEN})",
            "{{namespace}}/{{pipeline}}",
        )],
    },
];

const OPERATOR: &[Panel] = &[
    Panel {
        title: "Leader",
        description: "1 for the operator that acts.",
        unit: "short",
        drawn: &[("max by (namespace, pod) (feedmill_operator_leader)", "{{namespace}}/{{pod}}")],
    },
    Panel {
        title: "Work on pipelines",
        description: "How often a minute pipelines are worked on, by how that ended.",
        unit: RARE,
        drawn: &[(
            "60 * sum by (result) (rate(feedmill_operator_reconcile_duration_seconds_count[RATE]))",
            "{{result}}",
        )],
    },
    Panel {
        title: "Time of work on a pipeline",
        description: "99 of 100 are quicker.",
        unit: "s",
        drawn: &[(
            "histogram_quantile(0.99, sum by (le) (rate(feedmill_operator_reconcile_duration_seconds_bucket[RATE])))",
            "99 of 100",
        )],
    },
    Panel {
        title: "Writes",
        description: "Writes to the API server a minute, by kind. Nothing changes: nothing is written.",
        unit: RARE,
        drawn: &[("60 * sum by (kind) (rate(feedmill_operator_writes_total[RATE]))", "{{kind}}")],
    },
    Panel {
        title: "Pipelines",
        description: "Pipelines that are looked after.",
        unit: "short",
        drawn: &[("max(feedmill_operator_pipelines)", "pipelines")],
    },
];

const ROWS: [(&str, &[Panel]); 6] = [
    ("Trainers", TRAINERS),
    ("Workers", WORKERS),
    ("Batches", BATCHES),
    ("What limits workers", LIMITS),
    ("Data", DATA),
    ("Operator", OPERATOR),
];

fn source() -> Value {
    json!({"type": "prometheus", "uid": "${datasource}"})
}

fn drawn(panel: &Panel, id: usize, x: usize, y: usize, width: usize) -> Value {
    let targets = panel.drawn.iter().enumerate().map(|(number, (expression, legend))| {
        json!({
            "datasource": source(),
            "editorMode": "code",
            "expr": expression.replace("CHOSEN", CHOSEN).replace("RATE", "$__rate_interval"),
            "legendFormat": legend,
            "range": true,
            "refId": char::from(b'A' + u8::try_from(number).unwrap()).to_string(),
        })
    });
    let most = if panel.unit == "percentunit" { json!(1) } else { Value::Null };
    let (style, opacity, stacked) =
        if panel.unit == RARE { ("bars", 70, "normal") } else { ("line", 10, "none") };
    json!({
        "id": id,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source(),
        "gridPos": {"x": x, "y": y, "w": width, "h": HEIGHT},
        "targets": targets.collect::<Vec<Value>>(),
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "max": most,
                "custom": {
                    "drawStyle": style, "lineWidth": 1, "fillOpacity": opacity, "stacking": {"mode": stacked, "group": "A"},
                    "showPoints": "never", "spanNulls": false,
                },
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    })
}

/// What can be chosen: a label's values, or all.
fn choice(label: &str, within: &str) -> Value {
    let query = format!("label_values(feedmill_desired_workers{within}, {label})");
    json!({
        "name": label,
        "type": "query",
        "datasource": source(),
        "definition": query,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "sort": 1,
        "multi": true,
        "includeAll": true,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    })
}

/// The dashboard, as Grafana imports it.
pub fn dashboard() -> Value {
    let (mut panels, mut id, mut y) = (Vec::new(), 0, 0);
    for (title, row) in ROWS {
        id += 1;
        panels.push(json!({
            "id": id, "type": "row", "title": title, "collapsed": false, "panels": [],
            "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
        }));
        y += 1;
        // At most three beside each other, and as many in each line as can be: four are two and two.
        for line in row.chunks(row.len().div_ceil(row.len().div_ceil(3))) {
            let width = COLUMNS / line.len();
            for (place, panel) in line.iter().enumerate() {
                id += 1;
                panels.push(drawn(panel, id, place * width, y, width));
            }
            y += HEIGHT;
        }
    }
    json!({
        "uid": "feedmill",
        "title": "Feedmill",
        "description": "Made by operator/tests/dashboard; `make docs` writes it anew.",
        "tags": ["feedmill"],
        "schemaVersion": 39,
        "version": 1,
        "editable": true,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "annotations": {"list": [{
            "name": "Alerts",
            "datasource": source(),
            "enable": true,
            "iconColor": "red",
            "expr": r#"ALERTS{alertname=~"Feedmill.*", alertstate="firing"}"#,
            "titleFormat": "{{alertname}}",
            "textFormat": "{{namespace}}/{{pipeline}}",
        }]},
        "templating": {"list": [
            {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1},
            choice("namespace", ""),
            choice("pipeline", r#"{namespace=~"$namespace"}"#),
        ]},
        "panels": panels,
    })
}
