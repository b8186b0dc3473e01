# Every target sets up what it needs: .venv from pyproject.toml, system packages, and the control plane's binaries
# (built from Go modules, cached in ~/.cache/npufleet). Nothing else has to be installed by hand.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  if command -v $$p >/dev/null && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
BIN := .venv/bin
VENV := .venv/.installed-$(shell sha256sum pyproject.toml | cut -c1-12)
PYTEST := $(BIN)/python -m pytest -p tests.allowed_skips

.PHONY: help venv demo test lint format test-unit test-kernel test-cluster test-faults bench-fleet binaries generate clean

help: ## This list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV): pyproject.toml
	@hack/install-system-packages "$(PYTHON)"
	@echo "npufleet: setting up .venv ($(PYTHON))" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@rm -f .venv/.installed-* && touch $@

venv: $(VENV) ## The virtual environment alone, for running single tests.

demo: $(VENV) ## The main job on this machine: commits, DEMO_ARGS=--keep leaves it running.
	@$(BIN)/npufleet demo $(DEMO_ARGS)

# The binaries build while lint, the unit and the kernel plane run one after the other; the cluster plane waits for the
# guest to be gone, and its summary line closes the run.
test: $(VENV) ## Everything that runs without special hardware: lint, unit, kernel, cluster.
	@$(MAKE) --no-print-directory -j2 test-without-cluster binaries
	@$(MAKE) --no-print-directory test-cluster

.PHONY: test-without-cluster
test-without-cluster: $(VENV)
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-kernel

lint: $(VENV) ## ruff, mypy, import-linter, generated files up to date.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m crds.generator --check
	$(BIN)/python -m simulated_node.rules --check
	$(BIN)/python -m tests.contract --check

format: $(VENV) ## Put the code in the house's format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test-unit: $(VENV) ## Pure planners and rules, daemons on the simulated node.
	$(PYTEST) -n 2 tests/unit $(PYTEST_ARGS)

test-kernel: $(VENV) ## A real Linux guest (QEMU): the host contract and the binder on the kernel itself.
	@hack/kernel-lab-packages tools
	$(PYTEST) tests/kernel $(PYTEST_ARGS)

# Two test processes, each with a control plane of its own: most of the time there goes by in waiting. A cluster that is
# given is one, and so is its test process. The floor of runs under faults holds where everything runs.
test-cluster: $(VENV) binaries ## Real etcd, API server, controller-manager and scheduler; our real processes.
	FAULTS_FLOOR=$(if $(PYTEST_ARGS)$(NPUFLEET_TEST_KUBECONFIG),0,18) \
	  $(PYTEST) -n $(if $(NPUFLEET_TEST_KUBECONFIG),0,2) --dist loadgroup tests/cluster $(PYTEST_ARGS)

test-faults: $(VENV) binaries ## All faults in all scenarios, an hour or more; FAULTS_SEEDS=3, FAULTS_ONLY="create-hang".
	FAULTS=all FAULTS_FLOOR=$(if $(PYTEST_ARGS)$(FAULTS_ONLY),0,200) \
	  $(PYTEST) -n 2 -v tests/cluster/faults/test_matrix.py $(PYTEST_ARGS)

bench-fleet: $(VENV) binaries ## The controller with 1,000 and 5,000 nodes, beside a bare loop; BENCH_ARGS="--nodes 200".
	@$(BIN)/python -m tests.bench.fleet $(BENCH_ARGS)

binaries: $(VENV) ## Build (once) the control plane that demo and tests run.
	@$(BIN)/npufleet cluster build

generate: $(VENV) ## Manifests and reference docs from the models and rules.
	$(BIN)/python -m crds.generator
	$(BIN)/python -m simulated_node.rules --write
	$(BIN)/python -m tests.contract --write

clean: ## Remove .venv and caches of this folder; the binaries' cache outside stays.
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
