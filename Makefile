# Every target does its own set-up: what it needs is found, named or installed by tools/setup.sh.
#
#   make test PYTHON=python3.12    uses that interpreter, with an environment of its own (.venv-python3.12)
#   make soak MINUTES=30           compares with torch's loader for so long
#   make fuzz SEED=2 COUNT=100000  decodes so many files, made from that seed

PYTHON ?=
VENV := .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
PY := $(VENV)/bin/python
BENCH ?=
RELEASES ?=
PYTHONS ?=
MINUTES ?= 10
SEED ?= 1
COUNT ?= 1000000
CHECKED := $(wildcard src tests examples benchmarks tools)
# Tests that wait leave a core free for one process more than there are cores.
SHARED := -n $(shell expr $$(nproc) + 1) --maxprocesses 4 --dist worksteal
unexport PYTHONDONTWRITEBYTECODE  # the tests start hundreds of processes, each of which would compile the package

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help setup demo test check format docs wheel matrix sanitize fuzz soak faults bench clean distclean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.package  ## the environment and the native core, nothing else

demo: setup  ## trains a small network from files on disk and compares with torch's loader
	$(PY) examples/train.py

test: check  ## lint, types, import layers and every test
	$(PY) -m pytest $(SHARED)

check: setup $(VENV)/.tools  ## lint, types and import layers
	$(PY) -m ruff check $(CHECKED)
	$(PY) -m ruff format --check $(CHECKED)
	$(PY) -m mypy $(CHECKED)
	$(PY) -c 'from importlinter.cli import lint_imports_command as lint; lint()'

format: $(VENV)/.tools  ## writes the layout and the import order that `check` asks for
	$(PY) -m ruff check --fix $(CHECKED)
	$(PY) -m ruff format $(CHECKED)

docs: setup $(VENV)/.docs  ## the pages of docs/ as a site in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet

wheel: $(VENV)/.tools  ## a wheel in wheelhouse/ that carries its libjpeg, tried in a fresh environment; others: make wheel PYTHONS="python3.10 python3.12"
	tools/wheel.sh $(VENV) $(PYTHONS)

matrix:  ## the tests of the loader with torch 2.6, 2.8, 2.10, 2.14 and the newest; some: make matrix RELEASES="2.6 newest"
	tools/matrix.sh $(RELEASES)

sanitize: setup $(VENV)/.tools  ## the native tests under AddressSanitizer, then under ThreadSanitizer
	tools/sanitize.sh $(VENV) address
	tools/sanitize.sh $(VENV) thread

fuzz: setup  ## damaged JPEG files against libjpeg, under AddressSanitizer and UndefinedBehaviorSanitizer
	tools/fuzz.sh $(VENV) $(SEED) $(COUNT)

soak: setup $(VENV)/.tools  ## random cases for MINUTES=10, from SEED on: Penstock's loader beside torch's, bit for bit
	$(PY) -m tests.differential --minutes $(MINUTES) --seed $(SEED)000000
	$(PY) -m tests.tables.schemas --cases $$(($(MINUTES) * 1000)) --seed $(SEED)000000

faults: setup $(VENV)/.tools  ## every row of docs/reliability.md in full (under an hour), and its table anew
	$(PY) -m pytest tests/faults --faults=full $(SHARED) --timeout 3000

bench: setup build/peers/.done  ## every benchmark; some of them: make bench BENCH="photos cifar"
	$(PY) -m benchmarks $(BENCH)

clean:  ## removes what was built, keeps the environment and the demo's data
	rm -rf build dist wheelhouse .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f $(VENV)/.package

distclean: clean  ## removes the environments too
	rm -rf .venv .venv-*

$(VENV)/.python: tools/setup.sh
	@tools/setup.sh python $(VENV) $(PYTHON)

$(VENV)/.requirements: $(VENV)/.python pyproject.toml
	@tools/setup.sh requirements $(VENV)

$(VENV)/.tools: $(VENV)/.requirements
	@tools/setup.sh tools $(VENV)

$(VENV)/.docs: $(VENV)/.requirements
	@tools/setup.sh docs $(VENV)

# The folders of native/ themselves: their times change when a file goes.
$(VENV)/.package: $(VENV)/.requirements CMakeLists.txt pyproject.toml native $(wildcard native/* native/*/* native/*/*/*)
	@tools/setup.sh package $(VENV)

build/peers/.done: $(VENV)/.requirements
	@tools/setup.sh peers $(VENV)

# An editable install names its folder: one that was moved or copied is installed again.
ifneq ($(strip $(file <$(VENV)/.package)),$(CURDIR))
.PHONY: $(VENV)/.package
endif
