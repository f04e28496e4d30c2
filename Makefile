# Two commands matter: `make tune` (a real study on this machine's CPU) and `make test` (everything, from nothing).
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A default study ends within 20 minutes on two cores, installation not counted.
BUDGET ?= 19m
TUNE_ARGS ?=
# PyTorch's own index, for pips that do not find torch==…+cpu by themselves.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: help tune install install-dev test lint types check unit real faults benchmarks live ui clean

help:
	@echo "make tune        a real study on this machine's CPU: vLLM, a demo model, a proven winner"
	@echo "make test        lint, types, import contracts and the whole test suite, from nothing"
	@echo "make ui          the MLflow UI on the studies of 'make tune'"
	@echo "make faults      the fault campaign: kills, hangs, full disks; prints a table"
	@echo "make benchmarks  the search against random, TPE and GP on written-down surfaces; gain per second; a full storage"
	@echo "make live        one configuration against itself, warm against cold starts: real vLLM, an idle machine"

tune: $(VENV)/.installed
	@$(BIN)/tune --hardware cpu --budget $(BUDGET) $(TUNE_ARGS)

ui: $(VENV)/.installed
	@$(BIN)/tune ui

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "make: Python 3.11 or newer is needed; say PYTHON=python3.12 or the like" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo "make: $(PYTHON) -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.installed: pyproject.toml tools/install_cpu.sh | $(VENV)/bin/python
	@bash tools/install_cpu.sh $(BIN)/python '.[cpu,demo]' $(TORCH_INDEX)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed pyproject.toml
	@bash tools/install_cpu.sh $(BIN)/python '.[cpu,demo,eval]' $(TORCH_INDEX) --group dev
	@touch $@

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m "not vllm and not browser"

real: $(VENV)/.installed-dev
	@$(BIN)/python -m tuner.demo > /dev/null
	$(BIN)/python -m pytest -m "vllm"

check: lint types unit

test: lint types
	@$(BIN)/python -m tuner.demo > /dev/null
	$(BIN)/python -m pytest

faults: $(VENV)/.installed-dev
	$(BIN)/python -m tests.faults.campaign

benchmarks: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.search_benchmark
	$(BIN)/python -m tests.benchmarks.price_benchmark
	$(BIN)/python -m tests.benchmarks.scale_benchmark
	$(BIN)/python -m tests.benchmarks.outside_benchmark

live: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.live_benchmark

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
