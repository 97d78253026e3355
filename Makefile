# Two commands for everybody: `make demo` and `make test`. The rest is for developers.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt

# One thread per process: parallelism is over processes, and results are exact at a fixed thread count.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test env lint test-network bench clean

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

demo: $(VENV)/demo.stamp  ## install, run the main job, print the table and where the results are
	$(BIN)/cop2l bound preference --n 10000 --compression 300 --errors 120 --iterations 75 --tasks 5 --delta 0.05

test: $(VENV)/dev.stamp   ## everything: format, lint, types, tests, doctests, the README's examples
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal -m "not network"

test-network: $(VENV)/dev.stamp  ## the tests that download from the package registries
	$(BIN)/pytest -m network

lint: $(VENV)/dev.stamp   ## rewrite what the formatter and the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

env: $(VENV)/dev.stamp    ## create the developers' environment

# torch first and alone: the pinned build is the small CPU one where it is offered.
$(VENV)/demo.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) --editable .
	touch $@

$(VENV)/dev.stamp: $(VENV)/demo.stamp
	$(PIP) --editable '.[dev]'
	touch $@

clean:           ## remove the environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
