# Needs Python >= 3.11 with pip, and make. Everything is installed into .venv; the C++ kernels are
# compiled by the system's compiler, or by zig's, from PyPI, where there is none.
# On Linux a plain torch brings CUDA along; for the much smaller CPU build, set
# PIP_EXTRA_INDEX_URL to PyTorch's CPU index, as .github/workflows/test.yml does.

PYTHON ?= python3
PYTEST_ARGS ?=
FUZZ_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.installed-demo
BENCH_INSTALLED := $(VENV)/.installed-bench
COMMA := ,
CPP = $(shell find native -name '*.hpp' -o -name '*.cpp')

# Tests start many processes: each would compile torch's Python code anew if it were not kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install demo test lint types tests sanitize fuzz format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' Makefile

install: $(INSTALLED) ## set up .venv with all that demo and test need

demo: $(DEMO_INSTALLED) ## run the demonstration
	$(BIN)/pursuit demo

test: lint types tests ## lint, types and tests: what must pass before a change lands

lint: $(INSTALLED) ## check the style and the formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)

types: $(INSTALLED) ## check the types
	$(BIN)/mypy

tests: $(INSTALLED) ## run the tests (PYTEST_ARGS="-k lasso" chooses among them)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

sanitize: $(INSTALLED) ## run the tests of the kernels with checks of memory and arithmetic
	$(BIN)/python native/build.py --sanitize
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libubsan.so)" \
	ASAN_OPTIONS=detect_leaks=0 PURSUIT_INSTRUCTION_SET=sanitized OMP_NUM_THREADS=1 \
	$(BIN)/python -m pytest -n 2 tests/test_native.py $(PYTEST_ARGS)

fuzz: $(INSTALLED) ## attack everything with random problems and files (FUZZ_ARGS="--seed 1 --seconds 60")
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz.py $(FUZZ_ARGS)

format: $(INSTALLED) ## put the code into shape
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: $(BENCH_INSTALLED) ## install the peers and measure against them
	$(BIN)/pursuit bench

clean: ## remove caches and build products, but keep .venv
	rm -rf build dist pursuit-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . \( -name .git -o -path ./$(VENV) \) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("pursuit needs Python >= 3.11, but $(PYTHON) is %d.%d; try make PYTHON=python3.11" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

# Install with the extras $(1), and compile the kernels for all instruction sets or, if $(2) is empty, for
# this processor. They are compiled while pip installs the rest.
define install_extras
$(PIP) install -c constraints.txt cmake nanobind ninja
$(BIN)/python native/build.py $(2) & kernels=$$!; \
$(PIP) install --no-compile -c constraints.txt -e ".[$(1)]" && wait $$kernels
endef

# The stamps spare a second run the installation. The interpreter is order-only, since the
# time of the file behind its link says nothing about what is installed.
$(DEMO_INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(call install_extras,demo$(COMMA)plots)
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt | $(BIN)/python
	$(call install_extras,dev$(COMMA)demo$(COMMA)plots,--all)
	@touch $(DEMO_INSTALLED) $@

$(BENCH_INSTALLED): $(INSTALLED)
	$(PIP) install -c constraints.txt -e ".[bench]"
	@touch $@
