#!/usr/bin/env bash
# Builds the package's inside and a worker in release mode, and runs a bench of trainer/benches: receive (the default), steady, frozen or fleet.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=$(tools/python-venv.sh)
target=$(dirname "$environment")
cargo build --release --locked -p feedmill-python -p feedmill-worker
stage=$target/python-stage-release
rm -rf "$stage"
mkdir -p "$stage"
cp -r trainer/python/feedmill "$stage/feedmill"
cp "$target/release/lib_feedmill.so" "$stage/feedmill/_feedmill.abi3.so"
export PYTHONPATH=$stage FEEDMILL_WORKER=$target/release/feedmill-worker
# Compared with where it can be had.
"$environment/bin/python" -c 'import httpx' 2>/dev/null || "$environment/bin/pip" install --quiet 'httpx[http2]' || true
bench=receive
case ${1:-} in receive | steady | frozen | fleet) bench=$1 && shift ;; esac
exec "$environment/bin/python" "trainer/benches/$bench.py" "$@"
