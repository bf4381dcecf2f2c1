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

demo: $(VENV)/ready ## FedAvg against FedAvg (OCA) on real digits: a live table and a summary
	$(BIN)/fedstill run fedavg --data mnist-5k --clients 20 --active 0.2 --alpha 0.1 --rounds 20 --seed 1 --set lr=0.05

test: $(VENV)/ready ## every test, on all cores
	$(BIN)/python -m pytest -n auto

check: $(VENV)/ready ## lint, types, coverage
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy

format: $(VENV)/ready ## let ruff format the code
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

clean: ## remove what was built
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .coverage

.PHONY: help setup demo test check format clean
