.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3

help: ## this text
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --upgrade pip
	$(BIN)/pip install -q -c constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

setup: $(VENV)/ready ## a .venv with everything, pinned by constraints.txt

demo: $(VENV)/ready ## FedAvg against FedKF on real digits: live tables, a comparison, a report
	$(BIN)/fedstill demo

test: $(VENV)/ready ## every test but the long ones, on all cores
	$(BIN)/python -m pytest -n auto --dist loadgroup

test-deploy: $(VENV)/ready ## the long form of the deployed tests: hub and sites that are killed, 1 GB of noise, every kind of method
	$(BIN)/pip install -q -c constraints.txt -e ".[flower]"
	FEDSTILL_DEPLOY_TESTS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/flower --durations=10

FLWR ?= 1.42.0
test-flwr: $(VENV)/ready ## the deployed tests with another version of Flower: make test-flwr FLWR=1.42.0
	$(BIN)/pip install -q --no-deps --upgrade --target build/flwr-$(FLWR) flwr==$(FLWR)
	PYTHONPATH=$(CURDIR)/build/flwr-$(FLWR) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/flower

check: $(VENV)/ready ## lint, types, coverage of the rooms everything stands on
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto tests/core tests/parts tests/data tests/models --cov=fedstill.core --cov=fedstill.parts \
	  --cov=fedstill.data --cov=fedstill.models --cov-report=term:skip-covered --cov-fail-under=90

docs: $(VENV)/ready ## the site in site/, made from docs/ and the code; opens without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs-test: $(VENV)/ready ## the site's pages, links, tutorials and every block of code on it
	FEDSTILL_DEPLOY_TESTS=all $(BIN)/python -m pytest -n auto tests/docs

newcomer: $(VENV)/ready ## the commands of docs/index.md, typed in a fresh clone and timed; installing is not counted
	$(BIN)/python docs/newcomer.py --here

notebooks: $(VENV)/ready ## docs/tutorials/*.ipynb, made from examples/*.py
	$(BIN)/python docs/notebooks.py

release-check: $(VENV)/ready ## wheel and sdist: built, checked, installed into an empty environment, the demo run from there
	rm -rf dist build/empty
	$(BIN)/pip install -q -c constraints.txt -e ".[release]"
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install -q -c constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)" dist/*.whl
	cd build && empty/bin/fedstill --version && empty/bin/fedstill demo --rounds 1

PEERS ?= $(HOME)/.cache/fedstill-peers
bench: $(VENV)/ready ## every benchmark, on a machine that does nothing else (20 minutes), into its records and docs/benchmarks.md
	$(BIN)/python benchmarks/all.py --prepare --cache $(PEERS)
	$(BIN)/python benchmarks/all.py --cache $(PEERS)

results: $(VENV)/ready ## tables in README and docs, made from the records in results/; the leaderboard's page
	$(BIN)/fedstill results pages README.md docs
	$(BIN)/fedstill leaderboard -o leaderboard.html

format: $(VENV)/ready ## let ruff format the code
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

clean: ## remove what was built
	rm -rf $(VENV) build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .coverage

.PHONY: help setup demo test test-deploy test-flwr check docs docs-test newcomer notebooks release-check bench results format clean
