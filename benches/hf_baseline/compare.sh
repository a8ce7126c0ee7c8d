#!/bin/sh
# Feedmill's chain and torch's DataLoader in turns on the same photographs; ends with one line of JSON.
# usage: compare.sh PYTHON PHOTOS CHAIN [TURNS]
#   PYTHON  the environment's python, PHOTOS a folder that make_photos.py made, CHAIN the built program `chain`
set -eu
python=$1
photos=$2
chain=$3
turns=${4:-3}
here=$(cd "$(dirname "$0")" && pwd)
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
turn=0
while [ "$turn" -lt "$turns" ]; do
    "$chain" --photos "$photos" --rounds 3 | tail -n 1 | tee -a "$lines"
    "$python" "$here/baseline.py" "$photos" --rounds 1 | tail -n 1 | tee -a "$lines"
    turn=$((turn + 1))
done
"$python" - "$lines" <<'PYTHON'
import json
import statistics
import sys

lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
feedmill = [line["samples_per_second"] for line in lines if line["bench"] == "chain"]
baseline = [line["samples_per_second"] for line in lines if line["bench"] == "hf_baseline"]
ratios = [ours / theirs for ours, theirs in zip(feedmill, baseline)]
figures = {"bench": "compare", "feedmill": feedmill, "hf_baseline": baseline, "ratio": round(statistics.median(ratios), 2), "goal": 10}
loads = [line["load"] for line in lines]
print(json.dumps({**figures, "loads": loads}))
PYTHON
