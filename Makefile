# Two commands for everybody: `make demo` and `make test`. The rest is for developers.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --disable-pip-version-check --quiet --constraint constraints.txt

# One thread per process: parallelism is over processes, and results are exact at a fixed thread count.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test env lint test-network screenshots validity bench torture compare-avalanche test-avalanche compare-slda compare-river notebooks docs golden ci-long clean

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

demo: $(VENV)/demo.stamp  ## install, learn and certify three tasks of MNIST, verify, and write the report page
	$(BIN)/cop2l run demo --out demo/run
	$(BIN)/cop2l verify demo/run --data mnist --tasks 3 --task-classes 0,1 2,3 4,5
	$(BIN)/cop2l report demo/run --out demo/report.html
	@$(BIN)/cop2l show demo/run --brief
	@echo "Certificates: demo/run/certificates    Report: demo/report.html"

test: $(VENV)/dev.stamp   ## everything: format, lint, types, tests, doctests, the README's examples
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal -m "not network and not long"

test-network: $(VENV)/dev.stamp  ## the tests that download from the package registries
	$(BIN)/pytest -m network

screenshots: $(VENV)/dev.stamp  ## the report page in Chromium; writes the pictures of docs/report.md
	COP2L_SCREENSHOTS=docs/figures $(BIN)/pytest -m browser tests/report

validity: $(VENV)/dev.stamp  ## thousands of whole runs: how often certificates fail; writes reproduction/validity.md (some ten minutes)
	$(BIN)/python tests/validity/record.py

RESULTS := benchmarks/results

bench: $(VENV)/dev.stamp  ## the benchmarks that need no GPU, ratios measured side by side; writes benchmarks/results and reproduction/performance.md
	for file in bounds replay_step; do $(BIN)/python benchmarks/$$file.py; done
	$(BIN)/python benchmarks/cop2l_cost.py --rounds 3 --json $(RESULTS)/cost.json
	$(BIN)/python benchmarks/one_example.py --json $(RESULTS)/one-example.json
	$(BIN)/python benchmarks/many_tasks.py --iterations 4 --json $(RESULTS)/many-tasks.json
	$(BIN)/python benchmarks/memory_map.py --json $(RESULTS)/memory-map.json
	$(BIN)/python benchmarks/verification.py --rounds 3 --json $(RESULTS)/verification.json
	$(BIN)/python -m benchmarks.performance

torture: $(VENV)/dev.stamp  ## attack verify with forged certificates, hostile files and runs (minutes), and write reproduction/attacks.md
	$(BIN)/python tests/torture/torture.py

compare-avalanche: .avalanche/stamp  ## the baselines beside Avalanche 0.6, in an environment of its own
	.avalanche/venv/bin/python -W ignore benchmarks/compare_avalanche.py

test-avalanche: .avalanche/stamp  ## CoP2L inside Avalanche, and every logger, Weights & Biases too, in an environment of their own
	.avalanche/venv/bin/pytest tests/test_avalanche.py tests/experiments/test_loggers.py

compare-slda: $(VENV)/dev.stamp  ## SLDA beside those of Avalanche 0.6 and CapyMOA 0.15 (which needs Java), in an environment of its own
	$(PYTHON) -m venv .slda/venv
	.slda/venv/bin/pip install --disable-pip-version-check --quiet avalanche-lib==0.6.0 capymoa==0.15.1 torch==2.13.0 torchvision==0.28.0 safetensors pooch pillow pytest
	.slda/venv/bin/pip install --disable-pip-version-check --quiet --no-deps --editable .
	.slda/venv/bin/python -m pytest -q -W ignore -p no:cacheprovider --noconftest tests/methods/test_slda_elsewhere.py
	.slda/venv/bin/python -W ignore benchmarks/compare_slda.py

compare-river:            ## the monitor beside river's drift detectors, in an environment of its own; writes docs/results.md
	$(PYTHON) -m venv .river/venv
	.river/venv/bin/pip install --disable-pip-version-check --quiet river==0.26.1 scipy
	PYTHONPATH=src .river/venv/bin/python benchmarks/monitor.py

notebooks:                ## run the notebooks of docs/notebooks in Jupyter, in an environment of their own
	$(PYTHON) -m venv .notebooks/venv
	.notebooks/venv/bin/pip install --disable-pip-version-check --quiet --constraint constraints.txt nbclient==0.11.0 ipykernel==7.4.0 scikit-learn torch==$$(sed -n 's/^torch==//p' constraints.txt)
	.notebooks/venv/bin/pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable .
	cd docs/notebooks && for file in *.ipynb; do ../../.notebooks/venv/bin/jupyter execute $$file || exit 1; done

GOLDEN ?= HEAD~1

golden: $(VENV)/dev.stamp  ## compare what is learned and claimed with a commit: make golden GOLDEN=COMMIT (some five minutes)
	rm -rf build/golden && mkdir -p build/golden && git archive $(GOLDEN) src | tar -x -C build/golden
	$(BIN)/python golden.py build/golden/src src

docs: $(VENV)/dev.stamp   ## build the documentation as a site, build/site/index.html; a link that leads nowhere is an error
	$(BIN)/mkdocs build --strict

# The wheel by itself: built, checked, installed where nothing else is, and used from another folder.
ci-long: demo notebooks   ## what takes long: the demo, the notebooks, the long tests, and the wheel in an environment of its own
	$(MAKE) $(VENV)/dev.stamp
	$(BIN)/pytest -n 2 --dist worksteal -m long
	COP2L_TEST_STREAMS=480 $(BIN)/pytest -n 2 --dist worksteal tests/kernel/test_learning.py -k random_streams
	rm -rf dist .wheel && $(PYTHON) -m venv .wheel/build && $(PYTHON) -m venv .wheel/use
	.wheel/build/bin/pip install --disable-pip-version-check --quiet build twine
	.wheel/build/bin/python -m build --outdir dist
	.wheel/build/bin/twine check --strict dist/*
	.wheel/use/bin/pip install --disable-pip-version-check --quiet torch==$$(sed -n 's/^torch==//p' constraints.txt)
	.wheel/use/bin/pip install --disable-pip-version-check --quiet --constraint constraints.txt dist/*.whl
	mkdir .wheel/elsewhere && cd .wheel/elsewhere && ../use/bin/cop2l run synthetic --out run \
		&& ../use/bin/cop2l verify run --data synthetic && ../use/bin/cop2l report run --out report.html

lint: $(VENV)/dev.stamp   ## rewrite what the formatter and the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

env: $(VENV)/dev.stamp    ## create the developers' environment

# torch first and alone: the pinned build is the small CPU one where it is offered.
$(VENV)/demo.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==$$(sed -n 's/^torch==//p' constraints.txt)
	$(PIP) --editable '.[report]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/demo.stamp
	$(PIP) --editable '.[dev]'
	touch $@

.avalanche/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .avalanche/venv
	.avalanche/venv/bin/pip install --disable-pip-version-check --quiet torch==$$(sed -n 's/^torch==//p' constraints.txt)
	.avalanche/venv/bin/pip install --disable-pip-version-check --quiet avalanche-lib==0.6.0 torchvision==0.28.0 pytest --editable '.[tensorboard,mlflow,wandb]'
	touch $@

clean:           ## remove the environment and caches
	rm -rf $(VENV) .wheel .notebooks .avalanche .river .slda build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
