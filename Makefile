# `make demo` installs everything into .venv and runs the main job; `make serve` serves the tiny model at
# http://127.0.0.1:8000; `make test` installs and runs all checks; `make test-all` also runs in full what
# `make test` shortens; `make docs` builds the documentation site into site/; `make dist` builds sdist and wheel
# into dist/; `make test-oldest` runs the tests of the core with the lowest versions that pyproject.toml allows;
# `make fuzz` looks for ten minutes for inputs from strangers that fail.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo serve test test-all test-oldest fuzz lint check docs figures dist clean

demo: .venv/installed
	$(BIN)/ramen demo

serve: .venv/installed
	$(BIN)/ramen serve --no-auth

test: lint check

test-all: export RAMEN_SLOW_TESTS = 1
test-all: lint check

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# All tests, or those of TESTS="tests/memory tests/methods". Two workers with one thread each: more threads than
# cores make small tensors many times slower.
TESTS ?=

check: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --durations 10 $(TESTS)

# Not quietly: mkdocs counts only those warnings for --strict that it shows.
docs: .venv/installed
	NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict --site-dir site

# The figures of the pages are committed, so that a code host shows them too.
figures: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.documentation.figures docs/images

dist: .venv/installed
	rm -rf dist
	$(BIN)/python -m build --quiet --outdir dist .

OLDEST := .venv-oldest
OLDEST_TESTS ?= tests/utils tests/images tests/memory tests/encoder tests/models tests/methods tests/kernels

test-oldest: $(OLDEST)/installed
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n 2 --dist loadgroup $(OLDEST_TESTS)

$(OLDEST)/installed: pyproject.toml tools/lowest_versions.py
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) tools/lowest_versions.py > $(OLDEST)/lowest.txt
	$(OLDEST)/bin/pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/lowest.txt \
	    --editable '.[serve,parquet]' pytest pytest-xdist hypothesis
	touch $@

# Each target in a process of its own, as the first input that fails ends it.
FUZZ_TARGETS ?= connection json form infer tensor image state
FUZZ_SECONDS ?= 85

fuzz: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check atheris
	for target in $(FUZZ_TARGETS); do \
	    OMP_NUM_THREADS=1 PYTHONPATH=benchmarks $(BIN)/python -m tests.fuzz.run $$target $(FUZZ_SECONDS) || exit 1; \
	done

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-oldest site build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
