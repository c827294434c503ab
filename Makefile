# Everything happens in .venv, which is made on first use; `make clean` takes it away again.
#
#   make demo PYTHON=/path/to/python3.12     another interpreter
#   make test PYTEST="-k belief -x"          other arguments for pytest

PYTHON ?= $(shell command -v python3.11 >/dev/null 2>&1 && python3.11 -c '' >/dev/null 2>&1 && echo python3.11 || echo python3)
# A worker that crashes ends the tests: replacing it can wait for ever (pytest-xdist with --dist loadfile).
PYTEST ?= -n 2 --dist loadfile --max-worker-restart=0

# Images of containers often set it. Then every process of a test would compile all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

# Tests compile many small programs: this compiles them twice as fast. Those of full size do without it.
TESTED = XLA_FLAGS="$${XLA_FLAGS:---xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true}" $(BIN)/python -m pytest $(PYTEST)
# What `make quick` tests: the language, the tests of verification, the house itself, and two small syntheses.
QUICK := tests/core tests/logic tests/verification tests/test_rooms.py tests/test_tiers.py tests/runs/test_one_pass.py
# In `make test-all` a package that cannot be imported is a failure.
ALL = PSYCO_TEST_ALL=1

# The rooms whose coverage has a floor (`fail_under` in pyproject.toml), by their own tests and those of the front door.
COVERED := logic verification policies learners

VENV := .venv
BIN  := $(VENV)/bin
# On a terminal pip shows its progress; in a log it keeps quiet. Python compiles the modules that are used, when they are.
PIP  := $(BIN)/python -m pip --disable-pip-version-check install --no-compile $(shell [ -t 2 ] || echo -q) -c constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo studio quick test test-all soak coverage lint format bench bench-learners bench-peers bench-references bench-qvbs bench-real fuzz docs gallery browser clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/installed  ## synthesize, verify and draw a policy for Particle Dance
	$(BIN)/psyco synthesize particle-dance --require examples/particle_dance.props --episodes 60000 --seed 0 --out runs/demo --overwrite
	$(BIN)/psyco render runs/demo
	$(BIN)/psyco report runs/demo

studio: $(VENV)/installed-studio  ## the studio in the browser, with Particle Dance and a requirement filled in; one click learns and certifies
	$(BIN)/psyco studio runs

quick: lint  ## what one runs before a commit: below 60 seconds; ruff, mypy, core, logic, verification, rooms, and a small synthesis
	$(TESTED) --hypothesis-profile=quick -m "not (slow or more or full or extra or browser)" $(QUICK)

test: lint  ## ruff, mypy, and every test that the default install can run: about six minutes on two cores, installing included
	$(TESTED) -m "not (more or full or extra or browser)"

test-all: $(VENV)/installed-all browser  ## what `make test` leaves out: tests that need an extra or the browser, take long, or have full size
	$(ALL) $(TESTED) -m "(more or extra or browser) and not full"
	$(ALL) $(BIN)/python -m pytest $(PYTEST) -m full

soak: $(VENV)/installed-all  ## kill runs at random moments: none is lost, no byte differs; KILLS=1000, a few seconds each
	$(BIN)/python -m tests.soak $(or $(KILLS),1000)

coverage: $(VENV)/installed-all  ## which lines the tests of COVERED leave out; fails below the floor
	$(BIN)/python -m pytest $(PYTEST) -m "not full" $(COVERED:%=tests/%) tests/api tests/verification $(COVERED:%=--cov=src/psyco/_src/%) --cov-report=term-missing

lint: $(VENV)/installed-test  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-test  ## let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/installed-all  ## the benchmark tables
	$(BIN)/python -m benchmarks

bench-learners: $(VENV)/installed-all  ## which learner ends with a certified policy, and how good it is; SEEDS=20
	$(BIN)/python -m benchmarks.learners --seeds $(or $(SEEDS),20)

bench-real: $(VENV)/installed-all  ## robots, landing, driving, a slow simulator; TASKS="Hopper Pendulum" SEEDS="500 501" STEPS=1e5 JOBS=2
	$(BIN)/python -m benchmarks.real $(TASKS) --seeds $(or $(SEEDS),500 501 502) $(if $(STEPS),--steps $(STEPS)) $(if $(JOBS),--jobs $(JOBS))

bench-qvbs: $(VENV)/installed-all  ## models of the Quantitative Verification Benchmark Set; QVBS=FOLDER KIND=dtmc FAMILIES="brp herman" LIMIT=300
	$(BIN)/python -m benchmarks.qvbs $(or $(QVBS),../shared/qvbs) $(if $(KIND),--kind $(KIND)) $(if $(FAMILIES),--only $(FAMILIES)) $(if $(LIMIT),--limit $(LIMIT))

bench-references: $(VENV)/installed-all  ## ppo and sac beside those of Stable-Baselines3, unconstrained, equal steps; LEARNERS=ppo TASKS="Hopper Ant" SEEDS="700 701 702"
	$(BIN)/python -m benchmarks.references $(LEARNERS) $(if $(TASKS),--tasks $(TASKS)) --seeds $(or $(SEEDS),700 701 702)

bench-peers: $(VENV)/installed-all  ## Stable-Baselines3 and OmniSafe on the same tasks; TASKS=dance SEEDS="0 1 2" STEPS=50000 OMNISAFE=PYTHON
	$(BIN)/python -m benchmarks.peers $(TASKS) --seeds $(or $(SEEDS),0 1 2) $(if $(STEPS),--steps $(STEPS)) $(if $(OMNISAFE),--omnisafe $(OMNISAFE))

fuzz: $(VENV)/installed-all  ## files, requests and command lines that are almost right; MINUTES=10 SEED=0
	$(BIN)/python -m tests.fuzz --minutes $(or $(MINUTES),10) --seed $(or $(SEED),0)

docs: $(VENV)/installed-all  ## the documentation as a site, build/site/index.html, which opens from disk; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

gallery: $(VENV)/installed-all  ## the pictures and certificates of gallery and tutorials, again; some minutes
	$(BIN)/python docs/gallery.py

# Browser tests drive Debian's Chromium. Elsewhere any chromium, google-chrome or $$CHROMIUM will do.
browser:
	@find_browser() { command -v "$${CHROMIUM:-chromium}" || command -v chromium-browser || command -v google-chrome; }; \
	if ! find_browser >/dev/null && [ "$$(id -u)" = 0 ] && grep -qs '^ID=debian' /etc/os-release; then \
	  echo "Installing Debian's chromium for the browser tests (about a minute) ..."; \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	    apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null; } || true; \
	fi; \
	if find_browser >/dev/null; then :; \
	elif [ "$$CI" = true ]; then \
	  echo "No Chromium, and CI=true: the browser tests must run here. Install the package chromium." >&2; exit 1; \
	else \
	  echo "NOTE: no Chromium here, so the browser tests are left out. Install chromium (or set CHROMIUM) to run them."; \
	fi

clean:  ## remove .venv, caches and build products; runs/ stays
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment, if there is none that works.
define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "PSyCo needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>/dev/null || echo not here)." >&2; \
	  echo "Install one (Debian: apt-get install python3 python3-venv) or name it: make ... PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
endef

# The default install: what a user gets with `pip install psyco`, at the versions in constraints.txt.
$(VENV)/installed: pyproject.toml constraints.txt
	$(make_venv)
	@echo "Installing PSyCo into $(VENV): about 180 MB to download, about a minute, once ..."
	@$(PIP) -e .
	@touch $@

# With the server of the studio.
$(VENV)/installed-studio: $(VENV)/installed
	@$(PIP) -e '.[studio]'
	@touch $@

# With what `make test` needs: pytest, ruff, mypy and a few more.
$(VENV)/installed-test: pyproject.toml constraints.txt
	$(make_venv)
	@echo "Installing PSyCo and the test tools into $(VENV): about 200 MB to download, less than two minutes, once ..."
	@$(PIP) -e '.[test]'
	@touch $@ $(VENV)/installed

# Every extra and the development tools, on top.
$(VENV)/installed-all: $(VENV)/installed-test
	@echo "Installing every extra and the development tools: about 800 MB to download, about four minutes, once ..."
	@$(PIP) -e '.[all,dev,docs]'
	@if $(BIN)/python -c 'import pybullet' >/dev/null 2>&1; then $(PIP) --no-deps bullet-safety-gym; fi
	@$(PIP) --no-deps rliable
	@$(PIP) --no-deps carl-bench configspace gym gym-notices more-itertools
	@touch $@
