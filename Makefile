# Everything runs in .venv, test-lowest in .venv-lowest; both are made on first use. PYTHON chooses their interpreter.
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
LOWEST := .venv-lowest
LOWEST_PY := $(LOWEST)/bin/python
LOWEST_INSTALLED := $(LOWEST)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-lowest faults random-faults guards lint bench clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

# The stamp is as old as the last installation: a change of what it depends on makes a new environment.
# Dependency groups and build constraints need a newer pip than comes with Python 3.11.
$(INSTALLED): pyproject.toml constraints/dev.txt
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade "pip>=25.3"
	$(PY) -m pip install --quiet --constraint constraints/dev.txt --build-constraint constraints/dev.txt \
		--editable . --group dev
	touch $@

# The build itself takes the versions of dev.txt: lowest.txt has none for it.
$(LOWEST_INSTALLED): pyproject.toml constraints/lowest.txt constraints/dev.txt
	rm -rf $(LOWEST)
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST_PY) -m pip install --quiet --upgrade "pip>=25.3"
	$(LOWEST_PY) -m pip install --quiet --constraint constraints/lowest.txt --build-constraint constraints/dev.txt \
		--editable . --group test
	touch $@

venv: $(INSTALLED) ## make the environment

demo: $(INSTALLED) ## run the examples, then a test that fails on one rank
	$(PY) -m pytest examples -v
	@echo
	@echo "The next test is meant to fail: rank 1 has an error while rank 0 waits for it in all_reduce."
	@echo
	@status=0; $(PY) -m pytest examples/failing_rank/failing_rank.py || status=$$?; echo; \
	if [ $$status -ne 1 ]; then echo "It should have failed with exit code 1, but ended with $$status."; exit 1; fi; \
	echo "It failed, as it should: rank 1 is named as the cause, and the run did not hang."

test: $(INSTALLED) ## run the whole suite on two cores, and the examples
	$(PY) -m pytest -n 2 --dist loadfile
	$(PY) -m pytest examples

test-lowest: $(LOWEST_INSTALLED) ## run acceptance and compatibility tests with the lowest versions
	$(LOWEST_PY) -m pytest tests/acceptance tests/compatibility

faults: $(INSTALLED) ## run every fault at every place, and in every hook of each strategy
	$(PY) -m tests.faults
	$(PY) -m tests.strategies

random-faults: $(INSTALLED) ## put 200 random faults into a run of 1,000 static tests, three times
	$(PY) -m benchmarks.random_faults

guards: $(INSTALLED) ## take out each guard against a kind of trouble: its tests must fail
	$(PY) -m tests.guards

lint: $(INSTALLED) ## check style, format and types
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy

bench: $(INSTALLED) ## run the benchmarks
	$(PY) -m benchmarks

clean: ## remove the environments and all caches
	rm -rf $(VENV) $(LOWEST) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks .coverage .coverage.*
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
