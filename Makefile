# `make` or `make help` lists the targets; `make test` is the whole run.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# How long the simulation runs: how many seeds, and how many steps each.
SEEDS ?= 1000
STEPS ?= 2000
# Few steps are over before an optimized program is built.
SIM_PROFILE ?= release

# How many simulated histories a server plays in each form.
HISTORIES ?= 200

# What the benchmark measures, and further options for it: BENCH_ARGS="--only chain --rounds 3".
STORE ?= sqlite
BENCH_ARGS ?=

# $(call stage,name,command) runs one stage of `make test`, prints how long it took, and names it when it fails.
define stage
@begin=$$(date +%s); printf '\n==> %s\n' '$(1)'; \
if $(2); then printf '==> %s: ok, %d s\n' '$(1)' $$(( $$(date +%s) - begin )); \
else printf '==> %s: FAILED after %d s\n' '$(1)' $$(( $$(date +%s) - begin )) >&2; exit 1; fi
endef

# Where tests look for PostgreSQL. Each starts a server of its own, so the package has none to start.
has_postgres = [ -n "$$(ls "$$(pg_config --bindir 2>/dev/null)"/initdb /usr/lib/postgresql/*/bin/initdb 2>/dev/null)" ] \
	|| initdb --version >/dev/null 2>&1
postgres_cluster_conf := /etc/postgresql-common/createcluster.conf
no_postgres_cluster = { [ -e $(postgres_cluster_conf) ] \
	|| { mkdir -p $(dir $(postgres_cluster_conf)) && echo 'create_main_cluster = false' >$(postgres_cluster_conf); }; }
has_pgbouncer = [ -x /usr/sbin/pgbouncer ] || pgbouncer --version >/dev/null 2>&1
has_valkey = valkey-server --version >/dev/null 2>&1 || redis-server --version >/dev/null 2>&1
install = DEBIAN_FRONTEND=noninteractive apt-get install -y -qq

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-21s %s\n", $$1, $$2 }'

# The suite is left to its own stages, which play it in all its forms in one process.
.PHONY: test
test: began := $(shell date +%s)
test: ## everything: tools, check, tests, the long runs of stores, documentation examples, outcome coverage, a short simulation
	$(call stage,tools,$(MAKE) --no-print-directory tools)
	$(call stage,check,$(MAKE) --no-print-directory check)
	$(call stage,tests,cargo nextest run --locked --workspace -E 'not binary(conformance)')
	$(call stage,examples,$(MAKE) --no-print-directory examples)
	$(call stage,layers,$(MAKE) --no-print-directory layers)
	$(call stage,sqlite suite,$(MAKE) --no-print-directory sqlite-suite)
	$(call stage,sqlite histories,$(MAKE) --no-print-directory sqlite-histories)
	$(call stage,sqlite crashes,$(MAKE) --no-print-directory sqlite-crashes)
	$(call stage,sqlite two processes,$(MAKE) --no-print-directory sqlite-two-processes)
	$(call stage,sqlite trace,$(MAKE) --no-print-directory sqlite-trace)
	$(call stage,postgres servers,$(MAKE) --no-print-directory postgres-servers)
	$(call stage,postgres store,$(MAKE) --no-print-directory postgres-store)
	$(call stage,postgres pools,$(MAKE) --no-print-directory postgres-pools)
	$(call stage,postgres sdk,$(MAKE) --no-print-directory postgres-sdk)
	$(call stage,postgres suite,$(MAKE) --no-print-directory postgres-suite)
	$(call stage,postgres histories,$(MAKE) --no-print-directory postgres-histories HISTORIES=20)
	$(call stage,postgres processes,$(MAKE) --no-print-directory postgres-processes)
	$(call stage,postgres faults,$(MAKE) --no-print-directory postgres-faults)
	$(call stage,valkey servers,$(MAKE) --no-print-directory valkey-servers)
	$(call stage,valkey store,$(MAKE) --no-print-directory valkey-store)
	$(call stage,valkey sdk,$(MAKE) --no-print-directory valkey-sdk)
	$(call stage,valkey suite,$(MAKE) --no-print-directory valkey-suite)
	$(call stage,valkey histories,$(MAKE) --no-print-directory valkey-histories HISTORIES=20)
	$(call stage,valkey processes,$(MAKE) --no-print-directory valkey-processes)
	$(call stage,valkey faults,$(MAKE) --no-print-directory valkey-faults)
	$(call stage,doc tests,cargo test --locked --workspace --doc)
	$(call stage,coverage,$(MAKE) --no-print-directory coverage)
	$(call stage,simulation,$(MAKE) --no-print-directory sim SEEDS=40 STEPS=500 SIM_PROFILE=dev)
	@printf '\n==> all stages ok, %d s\n' $$(( $$(date +%s) - $(began) ))

.PHONY: tools
tools: ## install the test runner, the tracer, PostgreSQL, PgBouncer and Valkey when they are missing
	@cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest
	@strace --version >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq strace >/dev/null; }
	@$(has_postgres) || { $(no_postgres_cluster) && apt-get update -qq && $(install) postgresql postgresql-contrib >/dev/null; }
	@$(has_pgbouncer) || { apt-get update -qq && $(install) pgbouncer >/dev/null; }
	@$(has_valkey) || tools/install-valkey.sh

.PHONY: check
check: ## the read-only gate: formatting, lints, documentation
	cargo fmt --all --check
	cargo fmt --manifest-path benches/Cargo.toml --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo clippy --locked --manifest-path benches/Cargo.toml --target-dir target --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

.PHONY: fix
fix: ## apply what formatter and lints can repair by themselves
	cargo clippy --fix --allow-dirty --allow-staged --workspace --all-targets
	cargo fmt --all
	cargo fmt --manifest-path benches/Cargo.toml

.PHONY: coverage
coverage: ## every operation has shown every outcome the contract promises
	cargo test --locked --workspace --test coverage

EXAMPLES := hello retry-and-cancel human-approval external-callback takeover

.PHONY: examples
examples: ## every program of examples/ that needs no server, which checks itself
	cargo build --locked -q -p flowfabric --examples
	@for name in $(EXAMPLES); do printf -- '--- %s\n' "$$name"; "$${CARGO_TARGET_DIR:-target}/debug/examples/$$name"; done

.PHONY: layers
layers: ## the suite through all layers stacked, on the model and on SQLite
	cargo test --locked -q --workspace --test layers -- --quiet

.PHONY: sqlite-suite
sqlite-suite: ## the suite on SQLite in all four forms: file and memory, with and without fast paths
	cargo test --locked -q --workspace --test conformance -- --quiet

.PHONY: sqlite-histories
sqlite-histories: ## 200 simulated histories on SQLite, in all four forms, against the model
	FF_HISTORIES=200 cargo test --locked -q --workspace --test histories -- --nocapture

.PHONY: sqlite-crashes
sqlite-crashes: ## a process under load is killed 50 times; nothing that was acknowledged is lost
	FF_CRASH_ROUNDS=50 cargo test --locked -q --workspace --test crash -- --nocapture

.PHONY: sqlite-two-processes
sqlite-two-processes: ## two processes on one file for a minute
	FF_LOAD_SECONDS=60 cargo test --locked -q --workspace --test two_processes -- --nocapture

.PHONY: sqlite-trace
sqlite-trace: ## a trace of system calls: every answer follows the flush of its group
	cargo test --locked -q --workspace --test durability -- --nocapture

.PHONY: postgres-servers
postgres-servers: ## servers and a pooler for tests: they start, survive a kill, and leave nothing behind
	cargo test --locked -q -p ff-test-servers --test postgres_server --test postgres_pooler

.PHONY: postgres-store
postgres-store: ## connections, layout and functions of the store on Postgres
	cargo test --locked -q -p ff-backend-postgres --test postgres_connection --test postgres_schema --test postgres_functions --test postgres_store --test postgres_company --test postgres_journal --test postgres_mirrors --test postgres_lists --test postgres_reindex --test postgres_idle --test postgres_intake

.PHONY: postgres-pools
postgres-pools: ## the store on a pool of the caller, and behind PgBouncer in session mode
	cargo test --locked -q -p ff-backend-postgres --test postgres_pools

.PHONY: postgres-sdk
postgres-sdk: ## workers, clients and every program of examples/ on Postgres; takeover alone, because it is measured
	cargo build --locked -q -p flowfabric --examples
	cargo test --locked -q -p flowfabric --test postgres_sdk -- --skip worker_death
	cargo test --locked -q -p flowfabric --test postgres_sdk -- worker_death --nocapture

.PHONY: postgres-suite
postgres-suite: ## the contract and the suite on Postgres, with fast paths and the journal, and without; the contract while executions settle and on a pool of the caller, too
	cargo test --locked -q -p ff-backend-postgres --test postgres_contract --test postgres_conformance -- --quiet

.PHONY: postgres-histories
postgres-histories: ## simulated histories on Postgres against the model, with fast paths and the journal, with executions that settle at once, and without: make postgres-histories HISTORIES=200
	FF_HISTORIES=$(HISTORIES) cargo test --locked -q -p ff-backend-postgres --test postgres_histories -- --nocapture

.PHONY: postgres-processes
postgres-processes: ## four processes on one schema for half a minute
	FF_LOAD_SECONDS=30 cargo test --locked -q -p ff-backend-postgres --test postgres_processes -- --nocapture --test-threads 1

.PHONY: postgres-faults
postgres-faults: ## server, sessions and processes are killed under load; nothing that was acknowledged is lost
	FF_CRASH_ROUNDS=10 cargo test --locked -q -p ff-backend-postgres --test postgres_faults -- --nocapture

.PHONY: valkey-servers
valkey-servers: ## servers and a cluster for tests: they start, survive a kill, and leave nothing behind
	cargo test --locked -q -p ff-test-servers --test valkey_server

.PHONY: valkey-store
valkey-store: ## connections, keys, contents and memory of the store on Valkey, and what it asks while idle; idle and memory alone, because they are measured
	cargo test --locked -q -p ff-backend-valkey --test valkey_connection --test valkey_signposts --test valkey_lists
	cargo test --locked -q -p ff-backend-valkey --test valkey_store -- --skip memory::
	cargo test --locked -q -p ff-backend-valkey --test valkey_store -- memory:: --nocapture --test-threads 1
	cargo test --locked -q -p ff-backend-valkey --test valkey_idle -- --nocapture

.PHONY: valkey-suite
valkey-suite: ## the contract and the suite on Valkey, with fast paths and without, and on a cluster, in one slot and in several
	cargo test --locked -q -p ff-backend-valkey --test valkey_contract --test valkey_conformance -- --quiet

.PHONY: valkey-histories
valkey-histories: ## simulated histories on Valkey against the model, with fast paths and without, and on a cluster: make valkey-histories HISTORIES=200
	FF_HISTORIES=$(HISTORIES) cargo test --locked -q -p ff-backend-valkey --test valkey_histories -- --nocapture

.PHONY: valkey-processes
valkey-processes: ## four processes on one server and on one cluster, for 20 seconds each
	FF_LOAD_SECONDS=20 cargo test --locked -q -p ff-backend-valkey --test valkey_processes -- --nocapture --test-threads 1

.PHONY: valkey-faults
valkey-faults: ## servers, connections, primaries of a cluster and processes are killed and slots are moved under load; nothing that was acknowledged is lost
	FF_CRASH_ROUNDS=5 cargo test --locked -q -p ff-backend-valkey --test valkey_faults -- --nocapture --test-threads 2

.PHONY: valkey-sdk
valkey-sdk: ## workers, clients and every program of examples/ on Valkey and on a cluster; takeover alone, because it is measured
	cargo build --locked -q -p flowfabric --examples
	cargo test --locked -q -p flowfabric --test valkey_sdk -- --skip worker_death
	cargo test --locked -q -p flowfabric --test valkey_sdk -- worker_death --nocapture
	FF_VALKEY_CLUSTER=1 cargo test --locked -q -p flowfabric --test valkey_sdk -- --skip worker_death
	FF_VALKEY_CLUSTER=1 cargo test --locked -q -p flowfabric --test valkey_sdk -- worker_death --nocapture

.PHONY: sim
sim: ## the seeded simulation: make sim SEEDS=1000 STEPS=2000
	cargo run --locked --profile $(SIM_PROFILE) -q -- sim --seeds $(SEEDS) --steps $(STEPS)

.PHONY: bench
bench: ## the benchmark beside a bare queue: make bench STORE=sqlite
	cargo run --locked --release --quiet --manifest-path benches/Cargo.toml --target-dir target/benches -- \
		--store $(STORE) --dir target/ff-bench $(BENCH_ARGS)
