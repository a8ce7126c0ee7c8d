#!/usr/bin/env bash
# Builds the package's inside and a worker, lays them where an installed package has them, and runs the Python tests. Arguments go to
# unittest: tools/python-tests.sh test_loader -k resume. FEEDMILL_TEST_PYTHON is another Python, for the tests that need torch.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=$(tools/python-venv.sh)
target=$(dirname "$environment")
cargo build --quiet --locked -p feedmill-python -p feedmill-worker -p feedmill
stage=$target/python-stage
rm -rf "$stage"
mkdir -p "$stage"
cp -r trainer/python/feedmill "$stage/feedmill"
rm -rf "$stage/feedmill/bin"
mkdir "$stage/feedmill/bin"
cp "$target/debug/lib_feedmill.so" "$stage/feedmill/_feedmill.abi3.so"
ln -s "$target/debug/feedmill-worker" "$stage/feedmill/bin/feedmill-worker"

export PYTHONPATH=$stage FEEDMILL_COMMAND=$target/debug/feedmill PYTHONDONTWRITEBYTECODE=1
# What a launcher would say of another job.
unset WORLD_SIZE RANK TORCHELASTIC_RUN_ID SLURM_JOB_ID FEEDMILL_RUN FEEDMILL_WORKER FEEDMILL_TOKEN_FILE FEEDMILL_CA_FILE FEEDMILL_AGENT
cd trainer/tests
[ $# -gt 0 ] || set -- discover
exec "${FEEDMILL_TEST_PYTHON:-$environment/bin/python}" -X dev -m unittest "$@"
