# One word per job. Only Python >= 3.11 and make are assumed; every word installs what it needs first.
PYTHON ?= python3
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
VENV := .venv/$(VERSION)
BIN := $(VENV)/bin
# Each a file that says what is installed: what the demos need, all that a contributor needs, what builds the pages.
DEMO := $(VENV)/.demo
READY := $(VENV)/.ready
PAGES := $(VENV)/.pages

# The suite and the demos start hundreds of Python processes: each would compile the same files again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup fmt lint types check test test-system demo demo-batch bench soak wheel dist docs proto clean help

help:            ## show these words
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(READY)  ## make the virtual environment, for all words

$(DEMO): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("adsum needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.13")'
	@echo "making $(VENV), about a minute ..."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable '.[demo]' --group demo
	touch $@

$(READY): $(DEMO)
	$(BIN)/python -m pip install --quiet --editable '.[demo,etcd,kubernetes,kv,otel,tokenizers]' --group dev
	touch $@

$(PAGES): $(DEMO)
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

fmt: $(READY)    ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY)   ## style and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(READY)  ## mypy --strict
	$(BIN)/mypy

check: lint types ## lint, types and layers

# no test talks to the outside: hundreds of processes need not read the machine's certificate authorities at their start
test: $(READY)   ## the test suite: real sockets, a real Envoy, real processes
	SSL_CERT_FILE=/dev/null $(BIN)/python -m pytest --numprocesses=8 --dist=loadfile --no-loadscope-reorder $(ARGS)

test-system: $(READY) ## needs root, Go >= 1.26 and gcc: a real Kubernetes API server, helm, the compiled picker
	$(BIN)/python -m tests.system $(ARGS)

demo: $(DEMO)    ## workers, picker and a real Envoy, 30 s; KEEP=1 leaves them running
	$(BIN)/python -m examples.demo $(if $(KEEP),--keep) $(ARGS)

demo-batch: $(DEMO) ## 2,000 batch requests beside interactive users, on a real Redis, a minute; draws a plot
	$(BIN)/python -m examples.demo_batch $(ARGS)

bench: $(READY)  ## figures for benchmarks/README.md
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(READY)   ## half an hour under load, memory printed; ARGS="--minutes 5"
	$(BIN)/python -m benchmarks.soak $(ARGS)

wheel: $(DEMO)   ## a wheel in dist/ whose picker is compiled, for this Python (PYTHON=python3.13: another); needs gcc
	@mkdir -p dist
	@$(BIN)/python -m release.compiled_wheel dist

dist: $(DEMO)    ## the archives of this version in dist/, each installed into a fresh environment; minutes
	$(BIN)/python -m pip install --quiet --group release
	$(BIN)/python -m release

docs: $(PAGES)   ## the documentation site in .build/site; open .build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict $(ARGS)

proto: $(READY)  ## generate the ext_proc messages from their .proto
	$(BIN)/python -m epp.wire.generate

clean:           ## remove what these words made
	rm -rf .build dist .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
