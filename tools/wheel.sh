#!/usr/bin/env bash
# Builds the wheel, the worker's program in it, into target/wheels.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=$(tools/python-venv.sh)
target=$(dirname "$environment")
cargo build --release --locked -p feedmill-worker
mkdir -p trainer/python/feedmill/bin
install -m 755 "$target/release/feedmill-worker" trainer/python/feedmill/bin/feedmill-worker
strip --strip-debug trainer/python/feedmill/bin/feedmill-worker
"$environment/bin/maturin" build --release --locked --manifest-path trainer/Cargo.toml --out "$target/wheels" "$@"
