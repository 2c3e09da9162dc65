# The commands of the book. `make help` lists them.

PYTHON ?= python3
SEEDS ?= 3
PORT ?= 8000
BIN := .venv/bin
BUILD := $(BIN)/python -m book.press.build
# torch is not under the locks: its builds for CPUs and for GPUs have one version and other hashes.
LOCKED := $(BIN)/python -m pip install --quiet --require-hashes --no-deps --only-binary :all:
# Dask comes with what the tests need.
CLUSTERED := $(if $(SCHEDULER),.venv/installed-tests,.venv/installed)
PYTEST := $(BIN)/python -m pytest -q -n logical --maxprocesses 4 --dist loadfile
# A grammar of addresses that jsonschema reads at each start, two seconds, for a check nobody asks for.
UNUSED := --no-emit-package rfc3987-syntax --no-emit-package lark
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --only-binary :all: --no-annotate --custom-compile-command "make lock" $(UNUSED)
UV := uv==0.13.9
# uv knows where PyTorch's builds for CPUs are: make book CPU=1 takes several GB less on Linux.
TORCH := $(if $(CPU),$(BIN)/python -m pip install --quiet $(UV) && $(BIN)/uv pip install --quiet \
  --python $(BIN)/python --torch-backend cpu,$(BIN)/python -m pip install --quiet)
OR_SAY := || { echo "The installation is not complete: try again, or rm -r .venv first"; exit 1; }

# One thread a kernel (chapters run side by side, and tiny models are faster so); no progress bars
# in outputs that are compared.
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export TQDM_DISABLE := 1
export PYTHONUTF8 := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A reader's own settings must not decide where outputs come from.
export JUPYTER_PREFER_ENV_PATH := 1
unexport PYTHONPATH PYTHONIOENCODING MPLBACKEND ATTNBOOK_SEED ATTNBOOK_LIVE \
  JPY_SESSION_NAME COLAB_RELEASE_TAG

.DEFAULT_GOAL := help
.PHONY: help book html test quick check chapters studies worker notebooks serve claims read \
  implementations timings mutants soundness faults twice pdf epub slides picture wheel lock clean

help:  ## list the commands
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

book: .venv/installed  ## execute the chapters that are out of date, build the HTML
	@$(BUILD) book

html: .venv/installed  ## build the HTML from the committed outputs, executing nothing
	@$(BUILD) html

test: check  ## everything, what fails first first: style, types, unit tests, chapters, pages in a browser
	$(PYTEST) tests --ignore=tests/book -p no:nbval
	$(PYTEST) tests/book/test_claims_can_fail.py chapters --nbval --nbval-current-env --nbval-cell-timeout 600
	@$(BUILD) html
	@$(BIN)/python -m book.press.browser
	$(PYTEST) tests/book --ignore=tests/book/test_claims_can_fail.py -p no:nbval

quick: check  ## what to run after each edit, a minute: style, types, unit tests with few examples
	@ATTNBOOK_TESTS=quick $(BIN)/python -m pytest -q tests -n 2 -p no:nbval \
	  -m "not slow and not browser" --ignore=tests/book --ignore=tests/parity

check: .venv/installed-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy

chapters: .venv/installed  ## re-execute chapters (all, or ONLY="01_embeddings …"), write their outputs
	@$(BUILD) chapters $(ONLY)

studies: $(CLUSTERED)  ## make stale records (or ONLY="name …"; SAME_AS=commit keeps those only rewritten; DEVICE=cuda: those that need a GPU; SCHEDULER=tcp://…: on a Dask cluster)
	@env -u TQDM_DISABLE $(if $(DEVICE),$(BIN)/python -m studies $(if $(MINUTES),--minutes $(MINUTES)),\
		$(BUILD) studies $(if $(SAME_AS),--same-as $(SAME_AS))) $(ONLY)

notebooks: .venv/installed  ## open the chapters in JupyterLab, as copies in notebooks/ (LAB="--no-browser --ip 0.0.0.0 …")
	@LAB='$(LAB)' env -u TQDM_DISABLE $(BIN)/python -m book.press.lab

serve: .venv/installed  ## serve the built book on this machine (PORT=8000)
	@test -f _build/html/index.html || { echo "Nothing is built yet: run make book"; exit 1; }
	@$(BIN)/python -c 'import socket; socket.create_server(("127.0.0.1", $(PORT)))' 2>/dev/null \
	  || { echo "Port $(PORT) is in use: try make serve PORT=8001"; exit 1; }
	@$(BIN)/python -m http.server $(PORT) --bind 127.0.0.1 --directory _build/html

claims: $(CLUSTERED)  ## re-run chapters (or ONLY=…) under SEEDS=3 other seeds (LIVE=1: studies as recorded; SCHEDULER=tcp://…)
	@$(BUILD) claims --seeds $(SEEDS) $(if $(LIVE),--live) $(ONLY)

read: .venv/installed  ## list short sentences that rest on what has changed (ALL=1: they were read)
	@$(BUILD) read $(if $(ALL),--all)

worker: .venv/installed-tests  ## run rows and chapters for the scheduler of a Dask cluster (SCHEDULER=tcp://host:8786)
	@$(BIN)/dask worker $(SCHEDULER) --nthreads 1 --nworkers -1

implementations: .venv/installed-tests  ## measure what other libraries start with, for the chapter of this name
	@$(BIN)/python -m benchmarks.defaults

timings: .venv/installed-tests  ## time attention and training beside others' (25 minutes; QUICK=1: a minute)
	@env -u TQDM_DISABLE $(BIN)/python -m benchmarks $(if $(QUICK),--quick)

mutants: .venv/installed-tests  ## break the attention's code line by line: do the tests notice?
	@rm -rf _build/mutants && mkdir -p _build/mutants
	@cp -r pyproject.toml src tests _build/mutants
	@cd _build/mutants && nice -n 10 ../../$(BIN)/mutmut run --max-children 1
	@cd _build/mutants && ../../$(BIN)/mutmut results
	@cd _build/mutants && ../../$(BIN)/mutmut export-cicd-stats >/dev/null
	@$(BIN)/python -c 'import json; \
	  n = json.load(open("_build/mutants/mutants/mutmut-cicd-stats.json")); \
	  print("{killed} of {total} mutants killed".format(**n), "({:.1%})".format(n["killed"] / n["total"]))'

soundness: .venv/installed-tests  ## break the code at random: does each number that moves change its fingerprint? (10 minutes)
	@$(BIN)/python -m book.evidence.soundness

faults: .venv/installed-tests  ## full disk, kill -9, no home …: what do commands say and keep? (15 minutes, or ONLY=…)
	@$(BIN)/python tests/faults.py $(ONLY)

twice: html  ## build the pages again, in another folder and with other hashes: are all bytes equal?
	@rm -rf _build/twice && mkdir -p "_build/twice/another folder"
	@cp -r $(filter-out _build notebooks,$(wildcard *)) "_build/twice/another folder"
	@cd "_build/twice/another folder" && PYTHONHASHSEED=1 TZ=Pacific/Kiritimati "$(CURDIR)"/$(BUILD) html
	@diff -r _build/html "_build/twice/another folder/_build/html" && echo "All bytes are equal"

pdf: html .venv/installed-tests  ## print the whole book as one PDF, with a Chromium
	@$(BIN)/python -m book.press.pdf

epub: .venv/installed  ## build the book for e-readers, executing nothing
	@$(BUILD) epub

slides: html  ## make a deck of slides of each chapter
	@$(BUILD) slides

picture: html .venv/installed-tests  ## take the README's picture of the built book
	@$(BIN)/python -m book.press.picture

wheel: .venv/installed  ## build the package as a wheel, and use it in an empty environment
	@rm -rf _build/wheel
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir _build/wheel .
	@$(PYTHON) -m venv _build/wheel/env
	@grep == requirements.lock | tr -d '\\' > _build/wheel/versions
	@_build/wheel/env/bin/python -m pip install --quiet -c _build/wheel/versions _build/wheel/*.whl $$(grep ^torch requirements.txt)
	@cd _build/wheel && env/bin/python -I ../../tests/wheel.py
	@ls _build/wheel/*.whl

lock: .venv/installed-tests  ## write the locks anew; what may stay at its version does
	@mkdir -p _build
	@$(BIN)/python -m pip install --quiet $(UV)
	@$(COMPILE) requirements.txt -o requirements.lock
	@$(COMPILE) requirements.txt tests/requirements.txt -c requirements.lock -o tests/requirements.lock \
	  $$(sed -n 's/==.*//; s/^[a-z]/--no-emit-package &/p' requirements.lock)
	@awk '/^[a-z]/ { apart = /^(torch==|triton|cuda-|nvidia-)/ } !apart' requirements.lock > _build/requirements.lock
	@mv _build/requirements.lock requirements.lock

clean:  ## remove what was built and cached (.venv stays)
	rm -rf _build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.venv/installed: requirements.txt requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; v >= (3, 11) or sys.exit( \
	  "Python 3.11 or newer is needed, $(PYTHON) is %d.%d: try make PYTHON=python3.12 …" % v)'
	@echo "Installing into .venv (about a minute; 1.3 GB) …"
	@$(PYTHON) -m venv .venv || { echo "$(PYTHON) can't make a virtual environment:" \
	  "is the disk full? On Debian and Ubuntu, install python3-venv"; exit 1; }
	@$(LOCKED) -r requirements.lock $(OR_SAY)
	@$(TORCH) $$(grep ^torch== requirements.txt) $(OR_SAY)
	@$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e . $(OR_SAY)
	@touch $@

.venv/installed-tests: .venv/installed tests/requirements.lock
	@$(LOCKED) -r tests/requirements.lock $(OR_SAY)
	@touch $@
