# What a person or CI types. Every target prints what it does, and does nothing that is already done.
#
#   TORCH='torch==2.13.0'     the torch to install (any pip requirement, with options if need be)
#   EXTRAS=cuda               what else of hpcpipe's extras, apart by commas (cuda or cuda12, tune, ...)
#   MPICC=/path/to/mpicc      build against the site's MPI instead of the one from wheels
#   PYTHON=python3.12         the interpreter that the environment is made with (3.11 or newer)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
TORCH ?= torch==2.13.0
EXTRAS ?=
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
SAY := @printf '== %s\n'

# Each rank of each test would compile all of hpcpipe again: an editable install reads compiled modules but writes none.
export PYTHONDONTWRITEBYTECODE :=

COMMA := ,
NATIVE_BUILD_FILES := pyproject.toml meson.build meson.options native/meson.build native/mpiflags.py native/ninja-in-turn

.PHONY: help
help: ## show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-13s %s\n", $$1, $$2}'

.PHONY: venv
venv: $(VENV)/.ready ## make .venv with hpcpipe installed editable, its MPI and the development tools
	@$(BIN)/python -m compileall -q hpcpipe

$(DONE)/python:
	$(SAY) "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else f"hpcpipe needs Python 3.11 or newer, not {sys.version.split()[0]}: make venv PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(DONE) && touch $@

$(DONE)/torch: $(DONE)/python
	$(SAY) "installing $(TORCH)"
	@$(PIP) $(TORCH) numpy
	@touch $@

# An mpi4py that pip built earlier may belong to another MPI, so a source build never comes from the cache.
$(DONE)/mpi: $(DONE)/torch
ifdef MPICC
	$(SAY) "building mpi4py against $(MPICC)"
	@MPICC="$(MPICC)" $(PIP) --no-cache-dir --no-binary mpi4py 'mpi4py>=4'
else
	$(SAY) "installing MPI and mpi4py from wheels"
	@$(PIP) 'mpi4py>=4' 'mpich>=4.3'
endif
	@touch $@

$(DONE)/tools: $(DONE)/mpi
	$(SAY) "installing the build tools"
	@$(PIP) 'meson-python>=0.18' 'meson>=1.4' 'ninja>=1.11' 'nanobind>=2.4'
	@touch $@

# Without build isolation: when its sources have changed, importing hpcpipe rebuilds the module with the tools in $(VENV)
# (an import that finds nothing to do pays some 5 ms for asking). native/ninja-in-turn lets many ranks import at once.
$(VENV)/.ready: $(DONE)/tools $(EXTRAS:%=$(DONE)/with-%) $(NATIVE_BUILD_FILES)
	$(SAY) "building the native module and installing hpcpipe (editable)"
	@PATH="$(CURDIR)/$(BIN):$$PATH" NINJA="$(CURDIR)/native/ninja-in-turn" $(PIP) --no-build-isolation $(if $(MPICC),-Csetup-args=-Dmpicc=$(MPICC)) --editable '.[dev$(EXTRAS:%=$(COMMA)%)]'
	@touch $@

$(DONE)/with-%: $(DONE)/tools
	@touch $@

.PHONY: demo
demo: venv ## train a small GPT on 4 ranks and account for its time (the quickstart job)
	$(SAY) "running jobs/quickstart.toml"
	@$(BIN)/hpcpipe run jobs/quickstart.toml

.PHONY: test
test: test-unit test-native test-run test-mpi test-slurm ## all tests: unit, C++, whole runs, on 2, 3 and 4 ranks, on a Slurm

# Tests share the cores: threads that wait for each other would spin on them.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 POLARS_MAX_THREADS=1

# Which of several ranks died first is seen by a thread that has to look within the millisecond until the others die too.
ALONE := tests/unit/test_cluster_launch.py

# Runs that must end within seconds, and those whose times are compared with a prediction.
TIMED := tests/run/test_a_rank_fails.py tests/run/test_simulate_a_run.py

.PHONY: test-unit
test-unit: venv ## tests of the parts, without other ranks
	$(SAY) "unit tests"
	@$(ONE_THREAD) $(BIN)/python -m pytest -q -n 2 --dist=worksteal --ignore=$(ALONE) tests/unit
	@$(BIN)/python -m pytest -q $(ALONE)

.PHONY: test-run
test-run: venv ## tests that start real runs
	$(SAY) "tests of whole runs"
	@$(BIN)/python -m pytest -q -n 2 --dist=worksteal $(TIMED:%=--ignore=%) tests/run
	$(SAY) "tests of whole runs that are timed"
	@$(BIN)/python -m pytest -q $(TIMED)

.PHONY: test-slurm
test-slurm: venv ## tests on a real Slurm, which they start here (root; Debian's slurmctld slurmd slurm-client munge iproute2)
	$(SAY) "tests on a Slurm of this machine"
	@$(ONE_THREAD) $(BIN)/python -m pytest -q tests/slurm

.PHONY: test-nightly
test-nightly: venv ## the property tests of the schedules with 20,000 cases (minutes)
	$(SAY) "property tests, 20,000 cases"
	@$(BIN)/python -m pytest -v tests/unit -m nightly --timeout=1200

.PHONY: test-long
test-long: venv ## the tests that take minutes or much memory
	$(SAY) "long tests"
	@for folder in unit run slurm; do $(BIN)/python -m pytest -q -m long tests/$$folder || exit; done
	@tests/mpi/launch 2 $(PYTEST_MPI) -m long --timeout=200 tests/mpi

.PHONY: test-gpu
test-gpu: venv ## the tests that need an NVIDIA GPU (several ranks share one; EXTRAS=cuda); where there is none it says why
	$(SAY) "tests on a GPU"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pytest -q -m gpu --timeout=600 tests/gpu

SANITIZED := build/sanitized

.PHONY: test-native
test-native: venv ## the C++ tests, with the address and the undefined-behaviour sanitizer
	$(SAY) "C++ tests under ASan and UBSan"
	@export PATH="$(CURDIR)/$(BIN):$$PATH"; test -f $(SANITIZED)/build.ninja || meson setup $(SANITIZED) -Dbuildtype=debug \
	  -Db_sanitize=address,undefined -Db_lundef=false $(if $(MPICC),-Dmpicc=$(MPICC)) >/dev/null
	@PATH="$(CURDIR)/$(BIN):$$PATH" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  meson test -C $(SANITIZED) --quiet --print-errorlogs --suite native # MPI keeps memory until the process ends

PYTEST_MPI := python -m pytest -q --with-mpi --timeout=120 --timeout-method=thread

.PHONY: test-mpi
test-mpi: venv ## tests between ranks; tests/mpi/launch limits each run from outside
	$(SAY) "tests on 2 ranks"
	@tests/mpi/launch 2 $(PYTEST_MPI) tests/mpi
	$(SAY) "tests of the native module on 3 ranks"
	@tests/mpi/launch 3 $(PYTEST_MPI) $(wildcard tests/mpi/test_native_*.py)
	$(SAY) "tests on 4 ranks"
	@tests/mpi/launch 4 $(PYTEST_MPI) tests/mpi
	$(SAY) "tests of progress on 2 ranks without MPI_THREAD_MULTIPLE"
	@MPI4PY_RC_THREAD_LEVEL=serialized tests/mpi/launch 2 $(PYTEST_MPI) tests/mpi/test_native_progress.py

.PHONY: lint
lint: venv ## style, types and who imports whom
	$(SAY) "ruff"
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	$(SAY) "mypy"
	@$(BIN)/mypy
	$(SAY) "import-linter"
	@MESONPY_EDITABLE_SKIP="$(CURDIR)/$(wildcard build/cp*)" $(BIN)/lint-imports # it reads the sources where they lie

.PHONY: docs
docs: venv ## build the documentation's site into build/site, strictly; it loads nothing from anywhere
	$(SAY) "documentation"
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet # the variable silences an advertisement

.PHONY: package
package: venv ## build dist/ (source package and wheel) and try it in new environments (minutes)
	$(SAY) "building dist/"
	@rm -rf dist
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m build --no-isolation --outdir dist >/dev/null
	@ls dist
	$(SAY) "trying the packages in new environments"
	@HPCPIPE_DIST=dist $(BIN)/python -m pytest -q -m long tests/run/test_package.py

.PHONY: format
format: venv ## let ruff lay out and repair what it can
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

.PHONY: clean
clean: ## remove everything that was built or cached, .venv too; runs/ stays
	$(SAY) "removing $(VENV), build/ and caches"
	@rm -rf $(VENV) build .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
