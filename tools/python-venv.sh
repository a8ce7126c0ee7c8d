#!/usr/bin/env bash
# Makes sure that there is a Python environment with what the package's tests and its wheel need; prints its folder.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(cargo metadata --format-version 1 --no-deps --offline | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')
environment=$target/python-venv
wanted=trainer/tests/requirements.txt

if ! cmp -s "$wanted" "$environment/installed.txt"; then
    python3 -m venv --clear "$environment" >&2
    if ! "$environment/bin/python" -m pip install --quiet --disable-pip-version-check -r "$wanted" >&2; then
        echo "missing: the Python packages of $wanted, which pip could not install (see above); with a package index of" >&2
        echo "your own, set PIP_INDEX_URL" >&2
        exit 1
    fi
    cp "$wanted" "$environment/installed.txt"
fi
echo "$environment"
