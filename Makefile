# Needs Python 3.11 or newer and make; everything else goes into .venv.
#   make setup     make .venv with everything in it; PYTHON=<path> for another Python, EXTRAS=cuda for a GPU
#   make demo      compile and train a LeNet on handwritten digits
#   make test      lint, types and the fast tests; the default
#   make fast-tests  the tests of it alone
#   make test-all  the slow tests too; 45 minutes
#   make all-tests  the tests of it alone
#   make fuzz      damaged files and drawn arguments; finds go to out/fuzz; MINUTES=n for less
#   make opinfo    every operator of torch's test database; writes docs/op_coverage.md
#   make lint      style and import rules
#   make types     static types
#   make types-of-tests  those of the tests and examples; make test-all looks at them, too
#   make docs      the documentation as a site, in out/site
#   make pictures  the pictures of the documentation; needs chromium
#   make wheel     build the wheel and try it outside the tree
#   make bench     measure this project and its peers; QUICK=1 for a look, KEEP=1 keeps the results
#   make lock      make constraints.txt again; UPGRADE=1 for the newest versions
#   make clean     remove .venv and everything that was made
#   make help      this list

# The first of these that runs, is new enough and can make a virtual environment.
CANDIDATES := python3.11 python3 python3.12 python3.13 python3.14 python
WILL_DO := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c '$(WILL_DO)' >/dev/null 2>&1 && echo $$p && break; done)

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIBRARIES := $(VENV)/.libraries
# Wheels only, so that nothing runs while it is installed, and only those whose hashes are known.
# Modules are compiled when they are first imported: most of what lies in the wheels never is.
PIP := pip --python $(BIN)/python install --quiet --no-compile --require-hashes --only-binary=:all:
# The native kernels are compiled when the package is installed; where there is no compiler, by one
# from the index.
COMPILER := $(if $(shell command -v c++ g++ clang++),,compiler)
NATIVE := $(wildcard setup.py emulator/native/src/*)
QUIET := PYTHONWARNINGS=ignore:::setuptools.command.editable_wheel
PYTEST := $(BIN)/python -m pytest -q -n 2
PYRIGHT := $(BIN)/pyright --pythonpath $(BIN)/python
OUT := out

# The tests start a hundred processes, and each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

# What does not need one another goes on at once: lint beside the compiler of the kernels, types
# beside the tests, which wait for their processes now and then.
MAKEFLAGS += --jobs=2

.DEFAULT_GOAL := test
.PHONY: setup demo test fast-tests test-all all-tests fuzz opinfo lint types types-of-tests docs pictures wheel bench lock clean help again

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

# What is asked for beside the rest is looked at even if the rest is there.
$(LIBRARIES): pyproject.toml constraints.txt tools/requirements.py tools/install.py $(if $(EXTRAS),again)
	@test -n "$(PYTHON)" || \
	  { echo "No Python >= 3.11 with venv and ensurepip found; set PYTHON=<path>."; exit 1; }
	@$(BIN)/python -c '$(WILL_DO)' >/dev/null 2>&1 || $(PYTHON) -c '$(WILL_DO)' >/dev/null 2>&1 || \
	  { echo "PYTHON=$(PYTHON) will not do: it has to be a Python >= 3.11 with venv and ensurepip." \
	    "Nothing was made."; exit 1; }
	@$(BIN)/python -c '$(WILL_DO)' >/dev/null 2>&1 || \
	  { $(PYTHON) -m venv --clear --without-pip $(VENV) || { rm -rf $(VENV); exit 1; }; }
	@echo 'Installing into .venv; the first time takes a minute.'
	$(BIN)/python tools/requirements.py pip uv >$(VENV)/pip.txt
	@# The pip of PYTHON puts one into .venv in a third of the time that ensurepip takes.
	$(PYTHON) -m $(PIP) -r $(VENV)/pip.txt 2>/dev/null || \
	  { $(BIN)/python -m ensurepip >/dev/null && $(BIN)/python -m $(PIP) -r $(VENV)/pip.txt; }
	$(BIN)/python tools/install.py dev $(COMPILER) $(EXTRAS)
	@touch $(LIBRARIES)

# The package itself with its native kernels, which are compiled beside lint and types.
$(STAMP): $(LIBRARIES) $(NATIVE)
	@$(QUIET) $(BIN)/uv pip install --quiet --no-deps --no-build-isolation --python $(BIN)/python -e .
	@touch $(STAMP)

# Not $(STAMP), which installs what constraints.txt is yet to name.
lock:
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/requirements.py uv >$(VENV)/lock.txt
	$(BIN)/python -m $(PIP) -r $(VENV)/lock.txt
	$(BIN)/python tools/regen_constraints.py $(if $(UPGRADE),--upgrade)

demo: $(STAMP)
	$(BIN)/python examples/lenet.py compile --pef-name=lenet --output-folder=$(OUT)
	$(BIN)/python examples/lenet.py run --pef=$(OUT)/lenet/lenet.pef
	$(BIN)/python examples/lenet.py measure-sections --pef=$(OUT)/lenet/lenet.pef
	@echo "The PEF is $(OUT)/lenet/lenet.pef, its listing $(OUT)/lenet/lenet.pef.log"

test: fast-tests lint types

fast-tests: $(STAMP)
	$(PYTEST) -m "not slow"

test-all: all-tests lint types types-of-tests

all-tests: $(STAMP)
	XLA_FLAGS= $(PYTEST) -m "not campaign"

# Thousands of calls of the native kernels, also between guard pages and under sanitizers; then
# 200,000 files read, 5,000 programs run, every operation on drawn arguments; under two hours.
fuzz: $(STAMP)
	XLA_FLAGS= $(PYTEST) -m campaign
	$(BIN)/python -m tests.fuzz --readings 200000 --runs 5000 --op-cases 20 \
	  --seed $(or $(SEED),0) --minutes $(or $(MINUTES),90) --corpus $(OUT)/fuzz

# Every operator of torch's own test database; about half an hour.
opinfo: $(STAMP)
	$(BIN)/python -m tests.opinfo --results $(OUT)/opinfo/results.jsonl --report docs/op_coverage.md

lint: $(LIBRARIES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/python -m tools.room_lines >/dev/null
	$(BIN)/python tools/write_stubs.py --check

types: $(LIBRARIES)
	$(PYRIGHT) samba sambaflow pef_schema emulator bench tools

# An example imports transformers, which would be a quarter of the time of `make types`.
types-of-tests: $(LIBRARIES)
	$(PYRIGHT) tests examples

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir $(OUT)/site
	@echo "The site is $(OUT)/site/index.html; its search needs a server:"
	@echo "$(BIN)/python -m http.server --bind 127.0.0.1 --directory $(OUT)/site"

pictures: $(STAMP)
	$(BIN)/python -m tools.pictures

wheel: $(STAMP)
	tools/try_wheel.sh $(BIN)/python

bench: $(STAMP)
	@mkdir -p $(OUT)
	$(BIN)/python -m bench run $(if $(QUICK),--quick --model logreg-1 lenet-32 moe) \
	  $(if $(KEEP),--results) --json $(OUT)/bench.json --html $(OUT)/bench.html

clean:
	rm -rf $(VENV) $(OUT) build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
