# Feedmill's commands; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help prerequisites versitygw promtool helm quickstart test checks test-python test-cluster scenarios images cluster-build cluster-up cluster-down wheel soak ladder format lint docs screenshots sim sim-local

CARGO ?= cargo

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

# What is needed beyond the build is installed before anything is built.
test: NEEDS := test cluster
screenshots: NEEDS := test
test-cluster: NEEDS := cluster

prerequisites: ## install what the build needs, or say what to install
	@tools/prerequisites.sh $(NEEDS)

versitygw: ## build the tests' independent S3 server, once, or say what that needs
	@tools/versitygw.sh >/dev/null

promtool: ## fetch promtool and Prometheus, once; without them what tests alerts and the signal of Prometheus is left out
	@tools/promtool.sh >/dev/null && tools/promtool.sh prometheus >/dev/null || true

helm: ## build helm, which renders the chart for its tests, once; without it those are left out
	@tools/helm.sh >/dev/null || true

quickstart: prerequisites ## 2 workers, 4 ranks, an S3 server and photographs; one worker is killed half-way
	$(CARGO) build --release --locked -p feedmill
	@# One epoch and a bit.
	$(CARGO) run --quiet --release --locked -p feedmill -- local examples/quickstart/pipeline.yaml \
	    --embedded-s3 quickstart=examples/quickstart/bucket \
	    --workers 2 --ranks 4 --global-batch 32 --steps 20 --step-ms 250 --kill-worker --check

test: prerequisites ## everything that must hold on one machine; needs Go for an independent S3 server, helm and Kubernetes, installs as root what is missing
	@tests/cluster/ahead.sh $(MAKE) --no-print-directory checks

# What `test` does while Kubernetes is built beside it. The programs of the last line are what the first two have built.
checks: versitygw promtool helm format lint
	$(CARGO) test --workspace --locked
	tools/python-tests.sh
	tests/cluster/test.sh --usual

test-cluster: prerequisites ## the operator on a real Kubernetes of 3 nodes; needs Go, installs a container runtime as root; SCENARIOS=--usual runs fewer
	@tests/cluster/test.sh --before tests/cluster/ahead.sh $(MAKE) --no-print-directory scenarios

scenarios: versitygw promtool
	$(CARGO) build --locked -p feedmill -p feedmill-worker -p feedmill-operator
	$(CARGO) build --locked -p feedmill-client --example ranks
	tests/cluster/test.sh $(SCENARIOS)

images: ## static programs as images in target/images, as the Dockerfile makes them; as root, with buildah
	tools/images.sh

cluster-build: ## build Kubernetes from the Go module proxy, once
	@tests/cluster/build.sh >/dev/null

cluster-up: ## a real Kubernetes of 3 nodes on this machine; as root
	tests/cluster/cluster up --nodes 3

cluster-down: ## take it away again
	tests/cluster/cluster down

test-python: ## the Python package's tests alone
	@tools/prerequisites.sh wheel
	tools/python-tests.sh

wheel: ## the Python package with a worker in it, into target/wheels
	@tools/prerequisites.sh wheel
	tools/wheel.sh

soak: ## the proof for long: 50 events in a run, again and again with other seeds; EVENTS, ROUNDS and SEED change it
	@tools/prerequisites.sh wheel
	tools/soak.sh

ladder: prerequisites versitygw ## the ladder from a trainer that waits to one that does not, as a table and target/ladder.html
	$(CARGO) build --release --locked -p feedmill-worker -p feedmill-benches
	$(CARGO) run --quiet --release --locked -p feedmill-benches --bin ladder -- --html target/ladder.html

format: ## check the code's format
	$(CARGO) fmt --all --check

lint: ## warnings are errors
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

docs: ## write the pages that are made from code
	FEEDMILL_WRITE_DOCS=1 $(CARGO) test --locked -p feedmill-worker --test metrics_document
	FEEDMILL_WRITE_DOCS=1 $(CARGO) test --locked -p feedmill-operator --lib --test monitoring --test chart

screenshots: prerequisites ## take the pictures of docs/show.md again
	FEEDMILL_WRITE_SCREENSHOTS=1 $(CARGO) test --locked -p feedmill --test page pictures_of_the_page

sim: ## simulate autoscaling; writes docs/performance/autoscaling.md's table and autoscaling.html
	$(CARGO) run --quiet --release --locked -p feedmill-sim -- \
	    --markdown docs/performance/autoscaling.md --html docs/performance/autoscaling.html

sim-local: ## hold the simulator against a real feedmill local --autoscale with slow workers; ten minutes on an idle machine
	$(CARGO) build --quiet --release --locked -p feedmill -p feedmill-sim
	$(CARGO) run --quiet --release --locked -p feedmill-sim -- --against-local $${CARGO_TARGET_DIR:-target}/release/feedmill
