#!/usr/bin/env bash
# Feedmill's chain and torch's DataLoader in turns on the same photographs; ends with one line of JSON.
# usage: compare.sh PYTHON PHOTOS CHAIN [TURNS] [versitygw|embedded|folder]
#   PYTHON  the environment's python, PHOTOS a folder that make_photos.py made, CHAIN the built program `chain`;
#   the DataLoader reads from the same kind of S3 server as the chain (versitygw, the default, or the embedded one), or
#   from the folder itself, then the chain from versitygw.
set -euo pipefail
python=$1
photos=$(cd "$2" && pwd)
chain=$3
turns=${4:-3}
source=${5:-versitygw}
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'exec 3>&-; rm -rf "$scratch"' EXIT
from=()
server=$source
[ "$source" = folder ] && server=versitygw
if [ "$source" != folder ]; then
    # The chain's own S3 server, which ends when its standard input is closed.
    mkdir "$scratch/buckets" && ln -s "$photos" "$scratch/buckets/photos"
    mkfifo "$scratch/stdin" "$scratch/stdout"
    role=(FEEDMILL_BENCH_ROLE=versitygw FEEDMILL_BENCH_ARGUMENT="$photos")
    [ "$source" = embedded ] && role=(FEEDMILL_BENCH_ROLE=s3 FEEDMILL_BENCH_ARGUMENT="$scratch/buckets")
    env "${role[@]}" "$chain" <"$scratch/stdin" >"$scratch/stdout" &
    exec 3>"$scratch/stdin"
    exec 4<"$scratch/stdout"
    read -r endpoint <&4
    from=(--endpoint "$endpoint" --bucket photos)
    export AWS_ACCESS_KEY_ID=bench AWS_SECRET_ACCESS_KEY=bench-secret
fi
for ((turn = 0; turn < turns; turn++)); do
    "$chain" --photos "$photos" --s3 "$server" --rounds 3 | tail -n 1 | tee -a "$scratch/lines"
    "$python" "$here/baseline.py" "$photos" "${from[@]}" --rounds 1 | tail -n 1 | tee -a "$scratch/lines"
done
"$python" - "$scratch/lines" "$source" <<'PYTHON'
import json
import statistics
import sys

lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
feedmill = [line["samples_per_second"] for line in lines if line["bench"] == "chain"]
baseline = [line["samples_per_second"] for line in lines if line["bench"] == "hf_baseline"]
ratios = [ours / theirs for ours, theirs in zip(feedmill, baseline)]
figures = {"bench": "compare", "baseline_reads": sys.argv[2], "feedmill": feedmill, "hf_baseline": baseline, "ratio": round(statistics.median(ratios), 2), "goal": 10}
print(json.dumps({**figures, "loads": [line["load"] for line in lines]}))
PYTHON
