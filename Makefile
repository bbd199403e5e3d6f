# Two commands do all set-up on a fresh clone: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# `make test` uses both cores; one worker a core, whole files each, so that builds are shared inside a file.
PYTEST_FLAGS ?= -n 2 --dist loadfile

.PHONY: demo test test-servers soak bench lint clean

demo: $(VENV)/.ready
	$(BIN)/python -m benchmarks.demo

# Bytecode first: hundreds of tests start processes of ours, and some environments have them write none.
test: $(VENV)/.ready
	$(BIN)/python -m compileall -q -j 2 aot registry worker
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

# What uses a registry, on PostgreSQL, Valkey and a strict S3 instead of SQLite and directories. `make test` runs a part.
SERVICE_TESTS = $(filter-out %/test_registry_postgres.py, \
  $(shell grep -rlE 'tests\.(service|transport) import|import .*(a_shell|Shell|Stand)\b' tests --include='test_*.py'))
test-servers: $(VENV)/.ready
	AOT_TEST_STACK=servers $(BIN)/python -m pytest $(PYTEST_FLAGS) -m "not torch" $(SERVICE_TESTS)

# Everything killed at random for half an hour, then audited. AOT_FAULT_SEED repeats a plan of faults.
SOAK_SECONDS ?= 1800
soak: $(VENV)/.ready
	SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m tests.faults

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks.cold_start

lint: $(VENV)/.ready
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# torch first and pinned: an open range would take whatever is newest. Where the default index has only the CUDA build
# of that version (several gigabytes), name an index of CPU wheels: `make demo TORCH_INDEX=<index>`.
TORCH_INDEX ?=
$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[compile,kernels,server,demo,test]' ruff
	touch $@

clean:
	rm -rf $(VENV) .aot demo-data
