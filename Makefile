# One environment in .venv, made once and made again when what it installs changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test browser clean oldest newest newest-3.12 pythons faults properties
demo: $(STAMP)
	$(BIN)/topoff train wordnet --epochs 40 --norm none --no-residual --dropout 0 --lr 0.02 --schedule cosine --out runs/demo --overwrite

test: $(STAMP) browser
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

# The report is looked at in a real browser. Where there is none and none can be installed, its tests say so and skip.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { apt-get update -qq; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1; } || \
	  echo "no browser: the browser tests will be skipped"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# Both ends of what pyproject.toml promises, each in an environment of its own: some minutes of tests, or TESTS=--all of
# them. A torch without CUDA: make newest TORCH="torch --index-url https://download.pytorch.org/whl/cpu".
PYTHON311 ?= python3.11
PYTHON312 ?= python3.12
PYTHON313 ?= python3.13
TORCH ?= torch
TESTS ?=
INSTALL := -m pip install --quiet --disable-pip-version-check
TOOLS := pytest pytest-xdist hypothesis torchmetrics

oldest: .venv-oldest/.installed
	$(<D)/bin/python scripts/versions.py oldest $(TESTS)

newest: .venv-newest-3.13/.installed
	$(<D)/bin/python scripts/versions.py "newest, 3.13" $(TESTS)

newest-3.12: .venv-newest-3.12/.installed
	$(<D)/bin/python scripts/versions.py "newest, 3.12" $(TESTS)

pythons: oldest newest-3.12 newest

.venv-oldest/.installed: pyproject.toml constraints-oldest.txt
	test -x $(@D)/bin/python || $(PYTHON311) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) -c constraints-oldest.txt $(TORCH)
	$(@D)/bin/python $(INSTALL) -c constraints-oldest.txt -e ".[tensorboard]" $(TOOLS)
	touch $@

.venv-newest-%/.installed: pyproject.toml
	test -x $(@D)/bin/python || $(PYTHON$(subst .,,$*)) -m venv $(@D)
	$(@D)/bin/python $(INSTALL) --upgrade $(TORCH)
	$(@D)/bin/python $(INSTALL) --upgrade --upgrade-strategy eager -e ".[tensorboard]" $(TOOLS)
	touch $@

# What is tried to break it, at length: the figures of docs/reliability.md. About half an hour.
faults: $(STAMP) properties
	OMP_NUM_THREADS=1 $(BIN)/python scripts/kills.py
	OMP_NUM_THREADS=1 $(BIN)/python scripts/disks.py
	OMP_NUM_THREADS=1 $(BIN)/python scripts/soak.py

# Many new random graphs, settings and damaged files, where `make test` always draws the same few.
EXAMPLES ?= 200
properties: $(STAMP)
	$(BIN)/python scripts/inputs.py $(EXAMPLES)

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest-* build runs src/*.egg-info
