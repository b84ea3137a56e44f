# Everything one does with this tree. `make help` lists it.

CARGO ?= cargo
PYTHON ?= python3
# Random joins the runner checks against the oracle in one `make test`.
STRAIT_CASES ?= 100000

.PHONY: help demo check test test-long test-asan bench fmt deny clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

demo: ## join two generated TPC-H tables
	$(CARGO) run --release -- demo

check: ## format, lints, documentation, links
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --quiet
	$(PYTHON) .ci/links.py README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md benchmarks/README.md

test: ## all tests, 100,000 random joins among them
	STRAIT_CASES=$(STRAIT_CASES) $(CARGO) test --workspace --no-fail-fast

test-long: ## ten million random joins; STRAIT_SEED chooses others
	STRAIT_CASES=10000000 $(CARGO) test --release -p strait --test runner -- --nocapture

test-asan: ## the library's tests under AddressSanitizer, with fewer random joins
	RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address STRAIT_CASES=5000 \
	$(CARGO) test -p strait --lib --tests --target x86_64-unknown-linux-gnu --target-dir target/asan

bench: ## Strait beside DuckDB, Polars, DataFusion and PyArrow
	$(CARGO) run --release -- bench compare

fmt: ## format everything
	$(CARGO) fmt --all

deny: ## licences and advisories of all dependencies (cargo install cargo-deny)
	$(CARGO) deny check

clean: ## remove what was built
	$(CARGO) clean
