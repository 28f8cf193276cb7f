# What a person or CI types. Every target prints what it does, and does nothing that is already done.
#
#   TORCH='torch==2.13.0'     the torch to install (any pip requirement, with options if need be)
#   MPICC=/path/to/mpicc      build against the site's MPI instead of the one from wheels
#   PYTHON=python3.12         the interpreter that the environment is made with (3.11 or newer)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
DONE := $(VENV)/.done
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet
SAY := @printf '== %s\n'

NATIVE_BUILD_FILES := pyproject.toml meson.build meson.options native/meson.build native/mpiflags.py

.PHONY: help
help: ## show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1|/' | awk -F'|' '{printf "make %-10s %s\n", $$1, $$2}'

.PHONY: venv
venv: $(VENV)/.ready ## make .venv with hpcpipe installed editable, its MPI and the development tools

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

# Without build isolation: the compiled module is rebuilt after a change of its sources, with the tools in $(VENV).
$(VENV)/.ready: $(DONE)/tools $(NATIVE_BUILD_FILES)
	$(SAY) "building the native module and installing hpcpipe (editable)"
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation $(if $(MPICC),-Csetup-args=-Dmpicc=$(MPICC)) --editable '.[dev]'
	@touch $@
