# Images of worker and operator: one static program each on an empty root, for an unprivileged user.
#
#   docker build --target worker   -t feedmill/worker:0.1.0 .
#   docker build --target operator -t feedmill/operator:0.1.0 .
#
# `make images` makes the same content without Docker or a registry.

FROM rust:1.95-bookworm AS build
# libjpeg-turbo is built from source.
RUN apt-get update && apt-get install -y --no-install-recommends cmake nasm ca-certificates && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ARG TARGET=x86_64-unknown-linux-gnu
# Given by name, the target keeps the flags from build scripts and macros, which cannot be static.
RUN RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --target $TARGET -p feedmill-worker -p feedmill-operator \
    && mkdir /out && cp target/$TARGET/release/feedmill-worker target/$TARGET/release/feedmill-operator /out \
    && strip /out/*

FROM scratch AS operator
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/feedmill-operator /
USER 65532:65532
ENTRYPOINT ["/feedmill-operator"]

FROM scratch AS worker
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/feedmill-worker /
USER 65532:65532
ENTRYPOINT ["/feedmill-worker"]
