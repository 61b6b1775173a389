# `make` or `make help` lists the targets; `make test` is the whole run.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# How long the simulation runs: how many seeds, and how many steps each.
SEEDS ?= 1000
STEPS ?= 2000

# How many histories are compared per form of a store, how often a process is killed, and for how long two of them share a file.
HISTORIES ?= 200
ROUNDS ?= 50
SECONDS_OF_LOAD ?= 60

# What the benchmark measures, and further options for it: BENCH_ARGS="--only chain --rounds 3".
STORE ?= sqlite
BENCH_ARGS ?=

# $(call stage,name,command) runs one stage of `make test`, prints how long it took, and names it when it fails.
define stage
@begin=$$(date +%s); printf '\n==> %s\n' '$(1)'; \
if $(2); then printf '==> %s: ok, %d s\n' '$(1)' $$(( $$(date +%s) - begin )); \
else printf '==> %s: FAILED after %d s\n' '$(1)' $$(( $$(date +%s) - begin )) >&2; exit 1; fi
endef

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-10s %s\n", $$1, $$2 }'

.PHONY: test
test: began := $(shell date +%s)
test: ## everything: tools, check, tests, documentation examples, coverage, all forms of stores, faults, a short simulation
	$(call stage,tools,$(MAKE) --no-print-directory tools)
	$(call stage,check,$(MAKE) --no-print-directory check)
	$(call stage,tests,cargo nextest run --locked --workspace)
	$(call stage,doc tests,cargo test --locked --workspace --doc)
	$(call stage,coverage,$(MAKE) --no-print-directory coverage)
	$(call stage,conformance,$(MAKE) --no-print-directory conformance)
	$(call stage,histories,$(MAKE) --no-print-directory histories)
	$(call stage,crash,$(MAKE) --no-print-directory crash)
	$(call stage,load,$(MAKE) --no-print-directory load)
	$(call stage,trace,$(MAKE) --no-print-directory trace)
	$(call stage,simulation,$(MAKE) --no-print-directory sim SEEDS=40 STEPS=500)
	@printf '\n==> all stages ok, %d s\n' $$(( $$(date +%s) - $(began) ))

.PHONY: tools
tools: ## install the test runner, and what shows system calls, when they are missing
	@cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest
	@command -v strace >/dev/null || { apt-get update -qq && apt-get install -y -qq strace; }

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
	cargo test --locked -p ff-conformance --test coverage

.PHONY: conformance
conformance: ## the suite on SQLite: in a file and in memory, with and without fast paths
	cargo test --locked --workspace --quiet --test conformance

.PHONY: histories
histories: ## 200 simulated histories with the same answers on SQLite as on the model, in each of its forms
	FF_HISTORIES=$(HISTORIES) cargo test --locked --workspace --test histories -- --nocapture

.PHONY: crash
crash: ## a process under load is killed 50 times: nothing acknowledged is lost
	FF_CRASH_ROUNDS=$(ROUNDS) cargo test --locked --workspace --test crash -- --nocapture

.PHONY: load
load: ## two processes share a file for a minute
	FF_LOAD_SECONDS=$(SECONDS_OF_LOAD) cargo test --locked --workspace --test two_processes -- --nocapture

.PHONY: trace
trace: ## the system calls of a small run: every answer follows its flush
	cargo test --locked --workspace --test durability -- --nocapture

.PHONY: sim
sim: ## the seeded simulation: make sim SEEDS=1000 STEPS=2000
	cargo run --locked --release -q -- sim --seeds $(SEEDS) --steps $(STEPS)

.PHONY: bench
bench: ## the benchmark beside a bare queue: make bench STORE=sqlite
	cargo run --locked --release --quiet --manifest-path benches/Cargo.toml --target-dir target/benches -- \
		--store $(STORE) --dir target/ff-bench $(BENCH_ARGS)
