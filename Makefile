# Commands for a checkout. Each makes .venv when it is missing, or stale against pyproject.toml and constraints*.txt, then does its work.
#
# Needs Python 3.11 or later and Java 17 or later. uv is used when it is there (`make UV= test` does without).
# PYTHON=/path/to/python chooses the Python of a new .venv.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tallyflow-installed
# The example that `make demo` runs; KILL=1 kills its runner once.
EXAMPLE ?= orders
KILL ?=
UV ?= $(shell command -v uv 2>/dev/null)
PYTHON ?=
# Where it is set, nothing keeps its byte code, and each process compiles anew what it imports: seconds of CPU.
unexport PYTHONDONTWRITEBYTECODE

# Each worker has a Spark of its own, and in `crash` servers, about 3 GB then; `make WORKERS=0 test` does without workers. A test that runs a
# pipeline waits for servers half of its time, or for a lease to end, so more workers than cores keep these busy: with 3 of them two cores
# are idle for 9 % of `make test`, with 4 for 3 %.
# Files are handed out in the order of the paths: short ones last, so that no worker waits for the other's last long one.
test: WORKERS ?= 4
crash: WORKERS ?= 3
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

TEST_PATHS = $(wildcard tests/integration tests/spark tests/differential tests/unit)
CRASH_TESTS = $(wildcard tests/crash/test_*.py)
# Fault tests stand beside what they try, too. Of those the protocol's model comes first: it takes longest, as it is killed before every call.
CRASH_PATHS = $(shell grep -rl --include='test_*.py' 'pytest\.mark\.crash' tests/unit tests/spark tests/integration) tests/crash
LINTED = tallyflow pipelines resources sql dagster_project tests bench examples

.PHONY: help demo demo-cluster dagster test crash test-browser test-wheel wheel docs bench lint venv installed check-java constraints

help:
	@echo "make demo    start real servers, send 300,000 events through, check every one of them; EXAMPLE=fraud takes another one of examples/"
	@echo "make demo-cluster   the same on a Spark cluster: a master and two workers on loopback"
	@echo "make dagster  the pipelines in Dagster on loopback, with real servers; Ctrl-C ends all of it"
	@echo "make test    unit, Spark and integration tests"
	@echo "make crash   fault tests: killed processes, full disks, networks that fail"
	@echo "make test-browser   Dagster's pages and the dashboard in a real Chromium; SCREENSHOTS=docs/screenshots renews the pictures"
	@echo "make test-wheel   the wheel in an empty environment, with the quickstart"
	@echo "make wheel   build the wheel into dist/"
	@echo "make docs    the pages of docs/ as a site in build/site, with search"
	@echo "make bench   throughput, CPU per event, memory, latency"
	@echo "make lint    ruff and mypy"

demo: check-java venv
	@$(BIN)/tallyflow demo --example $(EXAMPLE) $(if $(KILL),--kill)

demo-cluster: check-java venv
	@$(BIN)/tallyflow demo --cluster

dagster: check-java venv
	@exec $(BIN)/tallyflow dagster

test: check-java venv
	$(PYTEST) $(TEST_PATHS) -m "not crash"

crash: check-java venv
	@if [ -z "$(CRASH_TESTS)" ]; then echo "make crash: no test file in tests/crash, nothing was run"; \
	else echo "$(PYTEST) $(CRASH_PATHS) -m crash"; exec $(PYTEST) $(CRASH_PATHS) -m crash; fi

test-browser: check-java venv
	$(BIN)/python -m pytest tests/browser $(if $(SCREENSHOTS),--screenshots $(SCREENSHOTS))

# setuptools would take files of an earlier build/ along.
wheel: venv
	@rm -rf build; \
	printed="$$($(BIN)/python -c "from setuptools import build_meta; build_meta.build_wheel('dist')" 2>&1)" || { printf '%s\n' "$$printed" >&2; exit 1; }; \
	rm -rf build
	@ls dist/*.whl

test-wheel: check-java venv
	UV="$(UV)" $(BIN)/python -m pytest tests/wheel

# mkdocs reads the same pages as GitHub; a dead link or anchor fails (not with --quiet, which drops warnings uncounted). Its notice names the successor of the theme.
docs: venv
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

bench: check-java venv
	@$(BIN)/python -m bench

lint: venv
	$(BIN)/ruff check $(wildcard $(LINTED))
	$(BIN)/ruff format --check $(wildcard $(LINTED))
	$(BIN)/mypy

# Exact pins and hashes for Python 3.11 and later; needs uv. Present pins stay unless pyproject.toml excludes them; `make constraints UPGRADE=--upgrade`.
# What builds the packages that come as source is pinned by itself: it must be there before they are.
COMPILE = uv pip compile --universal --python-version 3.11 $(UPGRADE) --generate-hashes --no-header --no-annotate --no-emit-index-url --quiet
constraints:
	printf 'setuptools>=77\nwheel\n' | $(COMPILE) --output-file constraints-build.txt -
	$(COMPILE) -c constraints-build.txt --extra dagster --extra postgres --extra local --extra docs --extra dev --output-file constraints.txt pyproject.toml

# Quiet: of uv and pip only warnings and errors are shown.
# Nothing is resolved while it is installed: the constraints name all of it, and some versions of pip find no hash for `name[extra]`.
# The stamp holds the place and the checksum of what was installed and is written last: an interrupted install is done again.
# A .venv that was copied along with the tree, or whose Python is gone, is made anew.
# The last import compiles what all workers would each compile at the same time; all of site-packages would take four times as long.
installed:
	@set -eu; \
	wanted="$$(pwd -P) $$(cat pyproject.toml constraints-build.txt constraints.txt | cksum)"; \
	found="$$(cat $(STAMP) 2>/dev/null || true)"; \
	if [ "$$found" = "$$wanted" ] && $(BIN)/python -c "" 2>/dev/null; then exit 0; fi; \
	case "$$found" in ""|"$$(pwd -P) "*) ;; *) rm -rf $(VENV);; esac; \
	rm -f $(STAMP); \
	if [ -n "$(UV)" ]; then probe="import sys"; else probe="import pip"; fi; \
	if ! $(BIN)/python -c "$$probe; import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null; then \
	    python=""; \
	    for name in $(or $(PYTHON),python3.13 python3.12 python3.11 python3); do \
	        if "$$name" -c "import sys; sys.exit(sys.version_info < (3, 11))" >/dev/null 2>&1; then python="$$name"; break; fi; \
	    done; \
	    if [ -z "$$python" ]; then \
	        echo "Python 3.11 or later is needed and was not found$(if $(PYTHON), as $(PYTHON),): install it (for example the package python3), or name one with PYTHON=" >&2; exit 1; \
	    fi; \
	    if [ -z "$(UV)" ] && ! "$$python" -c "import ensurepip, venv" 2>/dev/null; then \
	        version="$$("$$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"; \
	        echo "$$python cannot make a virtual environment: install the package python$$version-venv (Debian, Ubuntu), or uv" >&2; exit 1; \
	    fi; \
	    echo "making $(VENV) with $$python"; \
	    rm -rf $(VENV); \
	    if [ -n "$(UV)" ]; then "$(UV)" venv --quiet --no-python-downloads --python "$$(command -v "$$python")" $(VENV); else "$$python" -m venv $(VENV); fi; \
	fi; \
	echo "installing what constraints.txt names, each file by its hash (about 850 MB, once)"; \
	if [ -n "$(UV)" ]; then install="$(UV) pip install --quiet --no-deps --python $(BIN)/python"; \
	else install="$(BIN)/python -m pip install --quiet --no-deps --no-compile --disable-pip-version-check"; fi; \
	$$install --require-hashes -r constraints-build.txt; \
	$$install --require-hashes --no-build-isolation -r constraints.txt; \
	$$install --no-build-isolation -e .; \
	$(BIN)/tallyflow prepare || echo "Spark will start slowly until 'tallyflow prepare' has run"; \
	$(BIN)/python -W ignore -c "import dagster.components, dagster_webserver.cli, pytest, tallyflow.pipeline"; \
	printf '%s\n' "$$wanted" > $(STAMP)

# What is written in C is built where a compiler is, again after a change of it; nothing needs it.
venv: installed
	@$(BIN)/python -m pipelines.native_library

# The same rule as resources/local/java.py: a JAVA_HOME that is set decides, because Spark would use it, too.
check-java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	version="$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1)"; \
	if [ -z "$$version" ]; then \
	    echo "Java 17 or later is needed and $$java does not run: install it (for example the package openjdk-17-jre-headless), or set JAVA_HOME to one" >&2; exit 1; \
	elif [ "$$version" -lt 17 ]; then \
	    echo "Java 17 or later is needed, $$java is Java $$version: install it (for example the package openjdk-17-jre-headless), or set JAVA_HOME to one" >&2; exit 1; \
	fi
