# The commands of the README. Each is idempotent; `make setup` is part of every one of them.
.PHONY: python setup setup-dev tools agents browser triton kernels demo plan run fleet fleet-update fleet-status stop status code test \
  test-all deep budget fuzz exact screenshots lint clean
SHELL := /bin/sh
PYTHON ?= python3
PORT ?= 8000
VENV_PYTHON := .venv/bin/python

demo: setup
	@$(VENV_PYTHON) -m devstack demo

# How many replicas, of which kind, at what load, for how much (docs/capacity.md).
plan: setup
	@$(VENV_PYTHON) -m devstack plan

run: setup
	@$(VENV_PYTHON) -m devstack run --port $(PORT)

# The same platform with its replicas on Ray Serve (docs/scale.md): two pools, three replicas, as many as calls need.
fleet: setup
	@$(PYTHON) -m devstack.bootstrap --fleet
	@$(VENV_PYTHON) -m devstack run --fleet --port $(PORT)

stop status code clean fleet-update fleet-status:
	@$(VENV_PYTHON) -m devstack $@

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is older than 3.11. Name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }

setup: python
	@$(PYTHON) -m devstack.bootstrap

setup-dev: agents browser triton kernels

tools: python
	@$(PYTHON) -m devstack.bootstrap --dev

browser: tools
	@$(VENV_PYTHON) -m tests.browser

triton: tools
	@$(VENV_PYTHON) -m tests.triton_setup

# Compiled while types are checked and packages fetched; otherwise every process of the tests would wait for it.
kernels: tools
	@$(VENV_PYTHON) -c 'from serving.kernels.library import load_library; load_library()'

agents: tools
	@$(VENV_PYTHON) -m tests.agents_setup

# Every page as pictures, at two widths and in both colour schemes: into the folder screenshots/.
screenshots: browser
	@mkdir -p screenshots
	@SCREENSHOTS=$(CURDIR)/screenshots $(VENV_PYTHON) -m pytest -q -m deep tests/marketplace/web/browser/test_pages.py
	@echo "screenshots/: $$(ls screenshots | wc -l) pictures"

# What ruff and djangofmt cannot check, tests/lint.py does.
lint: tools
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@$(VENV_PYTHON) -m tests.lint
	@.venv/bin/djangofmt --quiet --check templates
	@.venv/bin/djangofmt check --quiet templates
	@.venv/bin/lint-imports --no-cache
	@$(VENV_PYTHON) -m benchmarks.results --check
	@.venv/bin/mypy

# Requests made from the description of both APIs: more than in `make test`, and others. EXAMPLES for each operation.
EXAMPLES ?= 50
SEED ?= 1
fuzz: tools
	@INTARSIA_FUZZ_EXAMPLES=$(EXAMPLES) INTARSIA_FUZZ_SEED=$(SEED) $(VENV_PYTHON) -m pytest -q -n 2 tests/marketplace/fuzz

# Random requests with drafts and without, in three types of weights: more than in `make test`, and others.
REQUESTS ?= 10000
exact: tools
	@INTARSIA_EXACT_REQUESTS=$(REQUESTS) $(VENV_PYTHON) -m pytest -q -n 2 tests/serving/speculation/test_exact.py

# All that a user relies on, once, at the cheapest level that proves it; twelve minutes on two cores (CONTRIBUTING.md).
test: tools
	@$(VENV_PYTHON) -m tests.tiers.run

# The rest of the suite, or one shard of it: `make test-all SHARD=2/6`.
SHARD ?= 1/1
test-all: test deep

deep: setup-dev
	@$(VENV_PYTHON) -m tests.tiers.run --deep $(SHARD)

# Keeps what the tests take now: the order of their files, the shards, and each folder's share of the twelve minutes.
budget: tools
	@$(VENV_PYTHON) -m tests.tiers.run --write
