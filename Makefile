# Each target sets up everything it needs; a second call finds it done. Choose another Python with: make PYTHON=python3.12 test
PYTHON ?= python3 python3.13 python3.12 python3.11
PIP := .venv/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt
CODE := src tests mutants $(wildcard examples)

.PHONY: help quickstart test pytest test-rest test-flower soak mutants reliability lint style types docs bench clean

help:
	@echo "make quickstart   train nine methods on handwritten digits, print a table and write a report"
	@echo "make test         ruff, mypy and the tests, in some minutes"
	@echo "make test-rest    further methods in tests of many, recipes, studies, browsers, pages of the site"
	@echo "make test-flower  real federations on this machine: Flower, certificates, keys, attacks"
	@echo "make soak         the slow tests"
	@echo "make mutants      plant small bugs, and see whether the tests notice (SEED=0 COUNT=300 JOBS=2 ONLY=reports)"
	@echo "make reliability  faults and attacks, one by one, for the page Reliability"
	@echo "make lint         ruff and mypy only"
	@echo "make docs         the documentation site, in build/docs"
	@echo "make bench        how fast it is on this CPU, beside a hand-written loop (up to ten minutes)"
	@echo "make clean        remove .venv and the caches"

quickstart: .venv/.core
	@.venv/bin/fedblocks quickstart

# The workers share the cores: more threads each only slow them down.
test test-rest test-flower soak mutants reliability: export OMP_NUM_THREADS = 1
# Many tests start processes: where bytecode is not kept, each of them compiles all it imports.
test test-rest test-flower soak: export PYTHONDONTWRITEBYTECODE =
# In the order of tests/conftest.py; what is skipped is named.
WORKERS := -rs --dist loadfile --no-loadscope-reorder

# What make test leaves to make test-flower: all tests of Flower but the fuzzer at the door.
FEDERATIONS := $(filter-out %_gateway_fuzz.py,$(wildcard tests/flower/test_*.py))

# Types are checked while the tests run: mypy takes one core for a minute, and tests often wait.
test: style
	@$(MAKE) --no-print-directory -j 2 types pytest

pytest: .venv/.dev
	.venv/bin/python -m pytest -q -n 3 $(WORKERS) -m "not soak and not rest" $(FEDERATIONS:%=--ignore=%)

test-rest: .venv/.dev
	.venv/bin/python -m pytest -q -n 3 $(WORKERS) -m "rest and not soak" --ignore=tests/flower

test-flower: .venv/.flower
	.venv/bin/python -m pytest -q -n 4 $(WORKERS) tests/flower

soak: .venv/.dev
	.venv/bin/python -m pytest -q -m soak --timeout=1800

# The first call notes which lines each test reaches; later ones only where something has changed.
mutants: SEED ?= 0
mutants: COUNT ?= 300
mutants: JOBS ?= 2
mutants: SECONDS ?= 20
mutants: .venv/.dev
	.venv/bin/python -m mutants --seed $(SEED) --count $(COUNT) --jobs $(JOBS) --seconds $(SECONDS) $(if $(ONLY),--only $(ONLY))

reliability: .venv/.flower
	.venv/bin/python docs/faults.py
	.venv/bin/python docs/generate.py

lint: style types

style: .venv/.dev
	.venv/bin/ruff check $(CODE)
	.venv/bin/ruff format --check -q $(CODE)

types: .venv/.dev
	.venv/bin/mypy --strict src

# Warnings end the build, and every link of the finished site is followed; neither needs a network.
docs: .venv/.docs
	.venv/bin/python -m sphinx -W --keep-going -q -b html docs build/docs
	.venv/bin/python docs/check_links.py build/docs
	@echo "open build/docs/index.html"

# Quiet cores, please: a loop with several threads suffers most from other programs.
bench: .venv/.core
	.venv/bin/fedblocks bench J1 J5 J7 J8 --large --engine auto --engine sequential --out results/bench-cpu.json

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .mutants

# The stamps are written last, so that an interrupted installation is taken up again.
.venv/.core: pyproject.toml constraints.txt
	$(venv)
	@echo "installing fedblocks into .venv (the first time takes a few minutes) ..."
	@$(PIP) -e '.[report]' && touch $@

.venv/.dev: pyproject.toml constraints.txt
	$(venv)
	@echo "installing fedblocks and its development tools into .venv (the first time takes a few minutes) ..."
	@$(PIP) -e '.[dev]' && touch .venv/.core $@

.venv/.flower: pyproject.toml constraints.txt
	$(venv)
	@echo "installing fedblocks, its development tools and Flower into .venv (the first time takes a few minutes) ..."
	@$(PIP) -e '.[dev,flower]' && touch .venv/.core .venv/.dev $@

.venv/.docs: pyproject.toml constraints.txt
	$(venv)
	@echo "installing fedblocks and Sphinx into .venv (the first time takes a few minutes) ..."
	@$(PIP) -e '.[docs]' && touch .venv/.core $@

# A .venv whose Python or pip does not start (interrupted, Python upgraded) is made anew.
define venv
@.venv/bin/python -m pip --version >/dev/null 2>&1 && exit 0; \
for python in $(PYTHON) none; do \
    "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break; \
done; \
if [ "$$python" = none ]; then \
    echo "fedblocks needs Python 3.11 or newer with venv; tried: $(PYTHON)." >&2; \
    echo "  fix: install it (Debian, Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3.12" >&2; \
    exit 1; \
fi; \
"$$python" -m venv --clear .venv
endef
