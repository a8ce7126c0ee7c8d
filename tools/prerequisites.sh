#!/usr/bin/env bash
# Makes sure that what the build needs is there, with the argument `test` or `cluster` also what tests need: installs Debian packages as root, says
# what to install otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."

required=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
    echo "missing: a Rust toolchain, version $required or later (cargo and rustc in PATH)" >&2
    exit 1
fi
installed=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n%s\n' "$required" "${installed%%-*}" | sort -V | head -n1)" != "$required" ]; then
    echo "rustc is $installed, this project needs $required or later: update the toolchain" >&2
    exit 1
fi

# tool:package; libjpeg-turbo is built from source and needs cmake and nasm.
missing=()
for pair in cc:gcc c++:g++ make:make cmake:cmake nasm:nasm; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
# The Python package is built and tested in an environment of its own.
[ -z "${1:-}" ] || python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3 python3-venv)
if [[ " $* " == *" test "* ]]; then
    # The page is tested in a real browser.
    browser=${FEEDMILL_BROWSER:-$(command -v chromium || command -v chromium-browser || command -v google-chrome || command -v google-chrome-stable || true)}
    [ -n "$browser" ] || missing+=(chromium)
fi
if [[ " $* " == *" cluster "* ]]; then
    # A real Kubernetes, where one can run.
    read -ra packages < <(tests/cluster/cluster packages) || true
    missing+=("${packages[@]}")
fi
[ ${#missing[@]} -eq 0 ] && exit 0

line="apt-get install -y --no-install-recommends ${missing[*]} libc6-dev"
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "installing: ${missing[*]}"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $line -qq >/dev/null
else
    echo "missing: ${missing[*]}; install them, on Debian or Ubuntu with: sudo $line" >&2
    exit 1
fi
