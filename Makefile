# `make` alone lists the targets. `make demo` installs the package alone into .venv; the other
# targets add the developer tools.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
export CONDOKIT_DATA ?= $(wildcard $(abspath ../shared/data))

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all lint types check docs bench bench-scale bench-parts dist release-check evidence tabpfn clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "condokit needs Python 3.11 or newer; set PYTHON=python3.12 or the like"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	@touch $@

$(VENV)/dev: $(VENV)/ready
	$(INSTALL) -e ".[dev]"
	@touch $@

setup: $(VENV)/dev ## Create .venv with the package and the developer tools

demo: $(VENV)/ready ## Adapt built-in example data; writes map, table and report into demo-output/
	@$(BIN)/python examples/demo.py demo-output

# one thread of linear algebra for each of the parallel tests; and compiled tests are kept
test test-all: export OMP_NUM_THREADS = 1
test test-all: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/dev ## Run the tests
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not slow"

$(VENV)/spark: $(VENV)/dev
	$(INSTALL) -e ".[dev,spark]"
	@touch $@

test-all: $(VENV)/spark ## Run all tests, the slow ones and those of Spark too
	$(BIN)/python -m pytest -q -n auto --dist worksteal

lint: $(VENV)/dev ## Check format and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/dev ## Check the types
	$(BIN)/mypy

check: lint types test ## Everything that must pass before a push

$(VENV)/docs: $(VENV)/dev
	$(INSTALL) -e ".[dev,docs]"
	@touch $@

docs: export OMP_NUM_THREADS = 1
docs: $(VENV)/docs ## Run the pages' code, build the site into docs/_build/html, look at it in a browser
	$(BIN)/python docs/run_pages.py
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html --screens docs/_build/screens

bench: export OMP_NUM_THREADS = 1
bench: $(VENV)/dev ## condokit beside its peers; writes benchmarks/BENCHMARKS.md (QUICK=1: compares)
	$(BIN)/python benchmarks/page.py $(if $(QUICK),--quick)

bench-scale: $(VENV)/dev ## Parquet files larger than memory (MILLIONS=50: 8 GB, 24 GB of disk)
	$(BIN)/python benchmarks/scale.py $(MILLIONS)
	$(BIN)/python benchmarks/render.py

bench-parts: $(VENV)/dev ## Time of matrices, samples, trust, many batches and the start
	$(BIN)/python benchmarks/matrices.py
	$(BIN)/python benchmarks/samples.py
	$(BIN)/python benchmarks/trust.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/batches.py
	$(BIN)/python benchmarks/start.py

$(VENV)/experiments: $(VENV)/dev
	$(INSTALL) -e ".[dev,experiments]"
	@touch $@

evidence: $(VENV)/experiments ## Measure again what pages quote and is older than the code (NAME=ansur, JOBS=2, QUICK=1, CHECK=1)
	$(BIN)/python experiments/evidence.py $(NAME) $(if $(JOBS),--jobs $(JOBS)) $(if $(QUICK),--quick) $(if $(CHECK),--check)

tabpfn: $(VENV)/experiments ## The same with the paper's classifier: TABPFN=its python, see CONTRIBUTING
	@test -n "$(TABPFN)" || { echo "Set TABPFN to a python that has TabPFN v1; CONTRIBUTING.md says how."; exit 1; }
	CONDOKIT_TABPFN=$(abspath $(TABPFN)) $(BIN)/python experiments/run.py $(NAME)

dist: $(VENV)/dev ## Build wheel and sdist into dist/
	$(INSTALL) build
	$(BIN)/python -m build --outdir dist .

release-check: ## What a release needs (OPTIONS=--lowest or --newest: tests with such versions)
	$(PYTHON) .ci/check_release.py $(OPTIONS)

clean: ## Remove what the targets made
	rm -rf $(VENV) demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
