# `make demo` installs everything into .venv and runs the main job; `make serve` serves the tiny model at
# http://127.0.0.1:8000; `make test` installs and runs all checks; `make test-all` also runs in full what
# `make test` shortens.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo serve test test-all lint check clean

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

# Two workers with one thread each: more threads than cores make small tensors many times slower.
check: .venv/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup --durations 10

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
