# The two commands of the README are `make demo` and `make test`; `make help` lists the rest.

PYTHON ?= python3
BIN := .venv/bin
RUNS ?= runs/demo
PORT ?= 8501
SERVE ?= 1

.PHONY: help env demo docs test suite check format screenshots notebooks chromium clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    record sample runs on this machine, summarise them, open the dashboard (SERVE=0: do not)"
	@echo "make test    run the tests, browser tests included, but those that are slow or need a GPU"
	@echo "make check   formatting, lint, types, import contracts"
	@echo "make format  format the code"
	@echo "make docs    build the documentation's site into site/, without a network"
	@echo "make notebooks  execute the notebooks anew, and keep their outputs"
	@echo "make screenshots  take the pictures of docs/ again, of the sample runs"
	@echo "make clean   remove the environment and what was recorded here"

env: .venv/made

.venv/made: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "overlaplab needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "Installing into .venv, which takes some minutes and about 2 GB, torch and the browser tests' tools included."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --constraint constraints.txt --editable '.[all,dev]'
	touch $@

demo: env
	$(BIN)/python scripts/demo.py $(RUNS)
ifeq ($(SERVE),1)
	@echo "The dashboard is at http://127.0.0.1:$(PORT) (Ctrl-C ends it)."
	$(BIN)/overlaplab app $(RUNS) --port $(PORT)
endif

test: # side by side: mypy takes most of a minute on one core
	$(MAKE) --jobs 2 check suite

# Four at a time: many tests wait for a page or a time limit. With caches of bytecode, for all the processes they start.
suite: export PYTHONDONTWRITEBYTECODE =
suite: export OMP_NUM_THREADS = 1
suite: env chromium
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m 'not alone and not slow and not gpu'
	$(BIN)/pytest -m 'alone and not slow and not gpu' $$(grep -rl mark.alone tests)

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: env
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: env
	$(BIN)/sphinx-build -c docs --fail-on-warning --keep-going --quiet . site
	@echo "The site is in site/: open site/index.html."

notebooks: env
	$(BIN)/python scripts/notebooks.py

screenshots: env chromium
	$(BIN)/python scripts/screenshots.py traces docs --docs

chromium:
	@scripts/chromium.sh

clean:
	rm -rf .venv runs build dist site *.egg-info
