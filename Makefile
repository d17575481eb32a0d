# Everything is installed into .venv by the targets themselves; `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
LOCKED := PIP_CONSTRAINT=requirements.lock $(BIN)/python -m pip install --quiet --disable-pip-version-check
# whole files, in the order of conftest.py
FILES := --dist loadfile --no-loadscope-reorder
# as many as cores and memory are there for
WORKERS := -p tests.support.workers -n auto
ROOT := $(if $(filter 0,$(shell id -u)),--allow-root) # JupyterLab asks for it in a container
TESTS ?= tests notebooks
DEMO := --pp 4 --microbatches 8 --forward-ms 20 --schedule gpipe,1f1b

# hundreds of processes start in the tests, and each would compile all modules anew
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test gpu test-elsewhere grid lab bench bench-box bench-planner bench-search bench-replay bench-faults attack check browser web site notebooks record clean mutate

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

demo: .venv/real ## simulate GPipe and 1F1B, execute both on local processes, print predicted against measured
	$(BIN)/python -m realrun $(DEMO) --out out/demo

test: .venv/all browser web ## all tests, lessons included
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest $(WORKERS) $(FILES) -m 'not attack' --nbval-lax --nbval-cell-timeout=3000 $(TESTS)

test-elsewhere: .venv/all ## demo and tests on machines as people have them: another home, locale, terminal, user, Python, and load; half an hour
	$(BIN)/python -m tests.support.elsewhere

gpu: .venv/all ## the tests that need a GPU; then this machine is measured, and ten plans predicted and run by both back-ends: build/check; some minutes
	$(BIN)/python -m pytest tests/realrun/run/test_cuda.py
	$(BIN)/python -m realrun check --out build/check

grid: .venv/all ## every combination of parallelism, ZeRO and schedule on up to 8 processes against one process; about ten minutes on two cores
	GRID=1 $(BIN)/python -m pytest tests/realrun/run/test_plan_executor.py

bench-box: .venv/real ## nineteen plans in a box: predicted step times against measured; on a quiet machine, five minutes
	$(BIN)/python -m benchmarks.bench_box

bench-planner: .venv/real ## nine plans in a box: the planner's order against the measured one; five minutes
	$(BIN)/python -m benchmarks.planner_in_a_box

bench-search: .venv/all ## how long a search of 10,000 plans takes, by one process and by several; one minute
	$(BIN)/python -m benchmarks.bench_planner

bench-replay: .venv/real ## what a replay says that faster ops would save against what they save, ten pairs of runs; three minutes
	$(BIN)/python -m benchmarks.bench_replay

bench-faults: .venv/real ## twenty kills, each fault ten times: what is named, and where training goes on; ten minutes
	$(BIN)/python -m benchmarks.bench_faults

attack: .venv/all ## the tests that take long: 300 random examples of each kind, thousands of plan files, flags, programs, cluster files, traces and torchrun variables made at random, signals in each phase, two hosts; an hour and a half
	$(BIN)/python -m pytest -s -m attack tests
	EXAMPLES=300 $(BIN)/python -m pytest -n 2 $(FILES) tests/simlab

check: .venv/all ## lint, types and the fast tests (simlab and the lessons' map; no processes, no browser)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 $(FILES) tests/simlab tests/test_architecture.py tests/lessons/test_questions.py

TONGUE := $(if $(filter command,$(origin LANG)),$(LANG))
LEARN := learn$(TONGUE:%=-%)
lab: .venv/lab ## open JupyterLab on your copies of the lessons, in your locale's language in the folder learn, or with LANG=zh in Chinese in learn-zh
	$(BIN)/python -m simlab lessons copy $(LEARN) $(TONGUE:%=--lang %)
	$(BIN)/jupyter lab $(ROOT) --notebook-dir=$(LEARN) --LabApp.default_url=/lab/tree/00_start_here.ipynb \
	  --LabApp.news_url=None \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate

bench: .venv/all ## speed beside raw SimPy, torch's back-end, runtime and visualizer, import time, split backward; fails below the promise
	$(BIN)/python -m benchmarks.bench

notebooks: .venv/all ## execute the lessons in place: still pictures in, widget state out
	SIMLAB_LESSONS=rendered $(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.store_widget_state=False notebooks/*.ipynb
	$(BIN)/python tests/support/clean_notebooks.py notebooks/*.ipynb

record: .venv/all ## record anew the runs that the README and the lessons show
	$(BIN)/python -m realrun $(DEMO),interleaved-1f1b,zb-h1,zb-v --out out/record
	$(BIN)/python assets/record.py out/record
	$(BIN)/python assets/record_lessons.py notebooks/*.ipynb
	$(BIN)/python assets/share.py

clean: ## remove everything that was made here, the environment too
	rm -rf .venv out build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is too old: Python 3.11 or newer is needed (make PYTHON=python3.12 ...)"; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "no venv module: on Debian or Ubuntu, apt-get install python3-venv"; exit 2; }

.venv/real: .venv/bin/python requirements.lock pyproject.toml
	$(LOCKED) -e '.[real]'
	@touch $@

.venv/lab: .venv/bin/python requirements.lock pyproject.toml
	$(LOCKED) -e '.[notebooks]'
	@$(LOCKED) -e '.[real]' || echo "torch cannot be installed here: cells that execute will show recorded runs"
	@touch $@

.venv/site: .venv/bin/python requirements.lock pyproject.toml
	$(LOCKED) -e '.[site]'
	@touch $@

.venv/all: .venv/bin/python requirements.lock pyproject.toml
	$(LOCKED) -e '.[real,notebooks,test,site,dask]'
	@touch .venv/real .venv/lab $@

browser: # tests open pages in a Chromium and draw Chinese; without them they are skipped, and the last lines say so
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	  else echo "no Chromium: the browser test will be skipped. On Debian: sudo apt-get install chromium"; fi
	@fc-list :lang=zh 2>/dev/null | grep -q . || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends fontconfig fonts-noto-cjk >/dev/null; \
	  else echo "no Chinese font: screenshots show boxes. On Debian: sudo apt-get install fonts-noto-cjk"; fi

web: # what the front end's tests and the page are built with; without npm they are skipped, and the last lines say so
	@if command -v npm >/dev/null; then \
	    $(MAKE) --no-print-directory web/node_modules/.package-lock.json || echo "npm failed: the front end's tests will be skipped"; \
	  else echo "no npm: the front end's tests will be skipped. On Debian: sudo apt-get install npm"; fi

site: .venv/site ## build the site that simulates in the browser, with the lessons, into build/site: static files for any file server; needs npm
	@command -v npm >/dev/null || { echo "no npm: on Debian or Ubuntu, apt-get install npm"; exit 2; }
	@$(MAKE) --no-print-directory web/node_modules/.package-lock.json
	$(BIN)/python web/site/build.py build/site

web/node_modules/.package-lock.json: web/package-lock.json
	npm ci --silent --prefix web --cache "$(CURDIR)/build/npm"
	@touch $@

docs: .venv/all ## write the computed parts of docs/ and build the reference of the API into build/docs; half a minute
	$(BIN)/python -m docs.generate
	$(BIN)/python -m pdoc -o build/docs simlab realrun

.PHONY: docs

ROOM ?= simlab.cost
mutate: .venv/all ## a hundred wrong changes made at random in one room, and how many the tests notice (ROOM=simlab.cost)
	$(LOCKED) -e '.[mutation]'
	$(BIN)/python tests/support/mutants.py $(ROOM) 100
