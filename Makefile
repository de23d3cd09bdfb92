# Everything runs from .venv, made on first use: `make demo` or `make test` on a fresh machine needs Python, pip and make.

VENV   := .venv
STAMP  := $(VENV)/.installed
BIN    := $(VENV)/bin
# The interpreter that .venv is made with, e.g. `make setup PYTHON=python3.11`; by default the first that is new enough.
PYTHON ?= python3.12 python3.11 python3.10 python3.13 python3
# Two processes with one thread each: small tensors gain nothing from threads inside an operation, and more processes
# than cores fight for them; each holds its own torch, about 1 GB. On a larger machine: `make test JOBS=8`.
JOBS   ?= 2

.PHONY: help setup demo test lint format clean

help:
	@echo "make demo    train and test a small model on made shapes, on the CPU, in minutes"
	@echo "make test    run the tests (one file: make test ARGS=tests/test_model.py)"
	@echo "make lint    ruff and mypy"
	@echo "make format  let ruff fix what it can"
	@echo "make setup   only install, into $(VENV) (about 6.5 GB on Linux)"
	@echo "make clean   remove caches and build products; rm -rf $(VENV) removes the installation"

setup: $(STAMP)

# The stamp goes first and comes back last, so an interrupted installation is taken up again by the next call.
# Where the venv module comes without ensurepip (Debian's python3 alone), the system's pip fills the environment.
$(STAMP): requirements.txt pyproject.toml
	@rm -f $@
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    for python in $(PYTHON) none; do \
	        "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && break; \
	    done; \
	    if [ "$$python" = none ]; then \
	        echo "pointvit needs Python 3.10 or newer, and none of these is: $(PYTHON)." \
	             "Install one, or name it: make PYTHON=/path/to/python3" >&2; \
	        exit 1; \
	    fi; \
	    echo "Making $(VENV) with $$python ($$("$$python" --version))"; \
	    "$$python" -m venv --clear $(VENV) 2>/dev/null || { \
	        "$$python" -m venv --clear --without-pip $(VENV) && \
	        "$$python" -m pip --python $(BIN)/python install pip; } || exit 1; \
	fi
	@echo "Installing the pinned packages into $(VENV): a few minutes, once"
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --disable-pip-version-check --no-deps -e .
	@touch $@
	@echo "Ready: source $(BIN)/activate puts pointvit on the path, or call $(BIN)/pointvit"

demo: $(STAMP)
	$(BIN)/pointvit demo $(ARGS)

test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -exec rm -rf {} +
