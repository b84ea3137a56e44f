# All tasks of this repository. `make help` lists them.

CARGO ?= cargo
PYTHON ?= python3
# The number of random joins that `make test` compares with the oracle.
STRAIT_CASES ?= 100000
# What is off by default, and tested all the same.
FEATURES := strait-cli/object-stores,strait-cli/sql
# The programs of crates/strait/examples: cargo builds them with the tests, and they check their own results.
EXAMPLES := two_tables files residual_filter progress gpu parallel add_strait
ASAN_TESTS := cancel edges kernels memory pool properties runner spill
ASAN := RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address STRAIT_CASES=5000 \
  LSAN_OPTIONS=suppressions=$(CURDIR)/.ci/leaks.supp
ASAN_TARGET := --target x86_64-unknown-linux-gnu --target-dir target/asan
# `make check` checks this target if its standard library is installed. It always checks the portable loops.
AARCH64 := aarch64-unknown-linux-gnu

.PHONY: help demo check test test-long test-asan fuzz test-gpu test-gpu-sanitize gpu-bundle bench fmt deny clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-17s %s\n", $$1, $$2}'

demo: ## join two generated TPC-H tables
	$(CARGO) run --release -- demo

# The command and the library are both called strait. If cargo documented both at once, each would clear
# doc/strait and write to it, and one could delete the files of the other.
# All builds of `make check` and `make test` have the same features, so that dependencies are compiled once. The
# exception is the check without default features: it is also the check of the command without object stores.
check: ## format, lints (for other processors too), documentation, layers, links
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --features $(FEATURES) -- -D warnings
	$(CARGO) clippy --workspace --features strait/portable,$(FEATURES) -- -D warnings
	$(CARGO) clippy -p strait -p strait-cli --no-default-features -- -D warnings
	! [ -d "$$(rustc --print sysroot)/lib/rustlib/$(AARCH64)" ] || $(CARGO) check -p strait --target $(AARCH64)
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc -p strait-cli -p strait-datafusion --features $(FEATURES) --no-deps --document-private-items --quiet
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --exclude strait-cli --exclude strait-datafusion --no-deps --document-private-items --quiet
	$(PYTHON) .ci/layers.py
	$(PYTHON) .ci/links.py README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md benchmarks/README.md benchmarks/notes.md

test: ## all tests, 100,000 random joins among them; installs NVRTC, moto and Azurite once
	nvrtc="$$(PYTHON=$(PYTHON) scripts/nvrtc.sh)" && stores="$$(PYTHON=$(PYTHON) scripts/stores.sh)" && \
	STRAIT_NVRTC="$$nvrtc" STRAIT_REQUIRE_NVRTC=1 STRAIT_STORES="$$stores" STRAIT_CASES=$(STRAIT_CASES) \
	$(CARGO) test --workspace --no-fail-fast --features $(FEATURES)
	for example in $(EXAMPLES); do \
	  "$${CARGO_TARGET_DIR:-target}/debug/examples/$$example" > /dev/null || exit 1; \
	done

# A random join is short, and half of its CPU time went to pages that the C library returned and took again.
KEEP_FREED := GLIBC_TUNABLES=glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=8589934592

test-long: ## ten million random joins, a large join on three tiers, float keys beside DuckDB; STRAIT_SEED chooses others
	$(CARGO) build --release -p strait-cli
	$(PYTHON) scripts/float_oracle.py --strait "$${CARGO_TARGET_DIR:-target}/release/strait"
	$(KEEP_FREED) STRAIT_CASES=10000000 $(CARGO) test --release -p strait --test runner -- --nocapture
	STRAIT_LONG=1 $(CARGO) test --release -p strait --test spill a_small_device_and_the_disk

# Not tests/limits: it measures the memory of whole processes, which AddressSanitizer multiplies.
test-asan: ## the library's tests under AddressSanitizer, with fewer random joins
	$(ASAN) $(CARGO) test -p strait --lib $(ASAN_TESTS:%=--test %) $(ASAN_TARGET)
	$(ASAN) $(CARGO) test -p strait-bench $(ASAN_TARGET)

fuzz: ## a million damaged files; STRAIT_FUZZ_SEED chooses others
	STRAIT_FUZZ_CASES=1000000 $(CARGO) test --release -p strait-cli --bin strait changed_files -- --nocapture

test-gpu: ## the tests that need a GPU; without one they fail
	STRAIT_REQUIRE_GPU=1 $(CARGO) test --release -p strait --lib device::cuda
	STRAIT_REQUIRE_GPU=1 $(CARGO) test --release -p strait-bench --test gpu

test-gpu-sanitize: gpu-bundle ## a few of them under compute-sanitizer: memory, races, initialisation
	target/gpu-bundle/gpu.sh sanitize

# The bundle runs on another machine. That machine needs no Rust, but its C library must not be older than the
# one here. Cargo adds a hash to the names of test binaries, and prints these names as JSON.
gpu-bundle: ## target/gpu-bundle: binaries, tests and gpu.sh, for a machine with a GPU
	rm -rf target/gpu-bundle && mkdir -p target/gpu-bundle/tests
	$(CARGO) build --release -p strait-cli
	$(CARGO) test --release -p strait --lib --test runner --no-run --message-format=json \
	  | $(PYTHON) scripts/test_binaries.py target/gpu-bundle/tests
	$(CARGO) test --release -p strait-bench --test gpu --no-run --message-format=json \
	  | $(PYTHON) scripts/test_binaries.py target/gpu-bundle/tests
	cp "$${CARGO_TARGET_DIR:-target}/release/strait" scripts/gpu.sh scripts/cub_sort.cu target/gpu-bundle
	du -sh target/gpu-bundle

bench: ## Strait beside DuckDB, Polars, DataFusion and PyArrow: whole jobs, and joins in memory
	$(CARGO) run --release -- bench jobs
	$(CARGO) run --release -- bench compare

fmt: ## format everything
	$(CARGO) fmt --all

deny: ## licences and advisories of all dependencies (cargo install cargo-deny)
	$(CARGO) deny check

clean: ## remove what was built
	$(CARGO) clean
