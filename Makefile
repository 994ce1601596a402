# On a fresh machine with Python, make and a package index:
#   make ladder    every rung compiled, checked, analysed; timed where there is a GPU
#   make test      the tests (those that need a GPU skip themselves without one)
#   make test-all  every tile and variant, too, and torch on the CPU
#   make wheel     dist/peakgemm-*.whl, its kernels compiled ahead
#   make release   sdist and wheels in dist/release, installed and tried
#   make explorer  build/explorer: pages of every rung, and the simulator in the browser (needs npm)
#   make test-web  the tests of these pages, in a headless Chromium
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The square of 4096 with a GPU, of 512 without; SIZE=8192 chooses.
LADDER_ARGS := $(if $(SIZE),--size $(SIZE))

.PHONY: ladder sweep test test-all test-web lint publish report docs wheel release explorer clean

ladder: $(VENV)/.installed
	$(BIN)/peakgemm ladder $(LADDER_ARGS)

sweep: $(VENV)/.installed
	$(BIN)/peakgemm sweep

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: $(VENV)/.installed-torch
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not web"

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Chromium is the system's (Debian: apt-get install chromium), else the one that playwright fetches.
test-web: $(VENV)/.installed-web node_modules/.installed
	npm run --silent check
	@command -v chromium chromium-browser google-chrome >/dev/null || $(BIN)/playwright install chromium
	$(BIN)/python -m pytest -m web tests/web

explorer: $(VENV)/.installed node_modules/.installed
	$(BIN)/python -m docs.generate.explorer build/explorer node_modules/pyodide build/cache

# Tables and plots of the README and of docs/, from results/.
publish: $(VENV)/.installed
	$(BIN)/python -m docs.generate

# report.html, of the records of results/.
report: $(VENV)/.installed
	$(BIN)/peakgemm report -o report.html

# build/site/html: a warning is an error. No GPU, and no network but for the packages. Where there is npm, the simulator
# in the browser is part of it.
docs: $(VENV)/.installed-docs $(if $(shell command -v npm),node_modules/.installed)
	$(BIN)/python -m docs.generate.site

# dist/peakgemm-*.whl with the kernels compiled ahead, by the NVRTC of constraints.txt. A clone has none, nor has
# `pip install .`: there each is compiled at its first use.
wheel: $(VENV)/.installed-dev
	$(BIN)/python -m lab.cubins build/cubins
	PEAKGEMM_CUBINS=build/cubins $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist .

# Half an hour of compiling on two cores. What is then published: docs/contributing/release.md.
CUBIN_ARCHS := sm_80 sm_86 sm_89 sm_90 sm_100 sm_120
release: $(VENV)/.installed-release
	$(BIN)/python -m lab.cubins build/release-cubins $(CUBIN_ARCHS:%=--arch %)
	$(BIN)/python -m lab.release dist/release --cubins build/release-cubins

# constraints.txt holds the versions that the figures and the no-spill tests were made with.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# torch's CPU build: its version, with +cpu, is above that of the package index, the CUDA build. Where that second index
# cannot be reached, pip takes what the first one has.
$(VENV)/.installed-torch: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 0 -c constraints.txt \
	  --extra-index-url https://download.pytorch.org/whl/cpu -e '.[dev-torch]'
	touch $@

$(VENV)/.installed-release: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

$(VENV)/.installed-web: $(VENV)/.installed-dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs,web]'
	touch $@

node_modules/.installed: package.json package-lock.json
	npm ci --silent
	touch $@

clean:
	rm -rf $(VENV) node_modules build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
