#!/usr/bin/env bash
# The images of the Dockerfile without Docker and without a registry: static programs, packed by buildah into target/images/NAME.tar.
# As root, with buildah.
set -euo pipefail
cd "$(dirname "$0")/.."
triple=x86_64-unknown-linux-gnu
# Given by name, the target keeps the flags from build scripts and macros, which cannot be static.
cargo=${CARGO:-cargo}
RUSTFLAGS="-C target-feature=+crt-static" "$cargo" build --release --locked --target $triple -p feedmill-worker -p feedmill-operator
target=$("$cargo" metadata --locked --no-deps --format-version 1 | python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
mkdir -p "$target/images"
for name in worker operator; do
    program=$target/$triple/release/feedmill-$name
    # No library may be missing on an empty root. Of a static program ldd says that, or fails.
    ldd "$program" 2>&1 | grep -Eq 'statically linked|not a dynamic executable' || { echo "$program is not static" >&2; exit 1; }
    tests/cluster/cluster image "feedmill/$name:$version" "$target/images/$name.tar" "$program"
    echo "feedmill/$name:$version $(du -m "$target/images/$name.tar" | cut -f1) MB packed: $target/images/$name.tar"
done
