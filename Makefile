# `make demo` and `make test` need nothing but Python >= 3.11 and make: both create .venv and install into it.

VENV ?= .venv
BIN := $(VENV)/bin
RUNS := tests/data/runs
KILLED := $(RUNS)/toy-7b_toy_arith_openai_chat/r_kill_mid

# The first interpreter that runs, is new enough and can make an environment. It is run, not only looked up: version
# managers leave commands on PATH that fail when called.
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11; do \
	"$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$candidate"; break; }; done)

# An interpreter with AgentCompass 1.0.1: one that is named, else an environment of our own on the first Python 3.12.
AGENTCOMPASS_VENV := .venv-agentcompass
AGENTCOMPASS_PYTHON := $(or $(COMPASS_ES_AGENTCOMPASS_PYTHON),$(CURDIR)/$(AGENTCOMPASS_VENV)/bin/python)
AGENTCOMPASS_INSTALLED := $(if $(COMPASS_ES_AGENTCOMPASS_PYTHON),,$(AGENTCOMPASS_VENV)/.installed)
PYTHON312 ?= $(shell for candidate in python3.12 "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.12*/bin/python3.12; do \
	"$$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info[:2] != (3, 12))' >/dev/null 2>&1 \
	&& { echo "$$candidate"; break; }; done)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check lint campaign docs bench fuzz clean

help: ## what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "No Python >= 3.11 with the venv module was found; name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)

# Stamps: an installation is done again when pyproject.toml changes. The development one serves both.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $(VENV)/.installed $@

$(AGENTCOMPASS_VENV)/.installed:
	@[ -n "$(PYTHON312)" ] || { echo "AgentCompass 1.0.1 needs Python 3.12, and none was found; name one: make PYTHON312=/path/to/python3.12" >&2; exit 1; }
	$(PYTHON312) -m venv --clear $(AGENTCOMPASS_VENV)
	$(AGENTCOMPASS_VENV)/bin/python -m pip install --quiet agentcompass==1.0.1 'msgspec>=0.19' 'xxhash>=3.4.1'
	@touch $@

demo: $(VENV)/.installed ## replay a killed run, verify the recorded history, answer SQL on it
	@set -eu; \
	folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	say() { printf '\n# %s\n' "$$*"; }; \
	run() { printf '$$ compass-es'; for word; do case $$word in *' '*) printf ' "%s"' "$$word";; *) printf ' %s' "$$word";; esac; done; \
		printf '\n'; $(BIN)/compass-es "$$@"; }; \
	say 'A run that was killed: its progress.json is gone, the stream is still there.'; \
	cp -R $(KILLED) "$$folder/"; rm "$$folder/r_kill_mid/progress.json"; \
	run replay "$$folder/r_kill_mid"; \
	say 'Every contradiction in the recorded history; exit code 1 says that there are some.'; \
	run verify $(RUNS) && code=0 || code=$$?; \
	echo "exit code $$code"; [ "$$code" -le 1 ]; \
	say 'One row for each run.'; \
	run runs $(RUNS); \
	say 'SQL over all of them.'; \
	run query 'SELECT run_key, status, total_tasks, failed_tasks, retries FROM runs ORDER BY retries DESC, run_key' $(RUNS)

test: lint ## ruff, mypy, then the whole test suite
	$(BIN)/python -m pytest -n 2

check: lint ## ruff, mypy and the tests that take a minute together
	$(BIN)/python -m pytest -n 2 -m "not slow"

TRIALS ?= 20

campaign: $(VENV)/.installed-dev $(AGENTCOMPASS_INSTALLED) ## everything that needs AgentCompass 1.0.1; TRIALS (20) killed runs of each kind
	COMPASS_ES_AGENTCOMPASS_PYTHON="$(AGENTCOMPASS_PYTHON)" COMPASS_ES_CAMPAIGN_TRIALS=$(TRIALS) \
		$(BIN)/python -m pytest -n 2 -m agentcompass --no-skips

lint: $(VENV)/.installed-dev ## ruff and mypy
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check --quiet .
	$(BIN)/python -m mypy

docs: $(VENV)/.installed-docs ## the documents as a site, in site/; fails for a broken link or an undocumented public name
	$(BIN)/python -m mkdocs build --strict --quiet

bench: $(VENV)/.installed-dev ## every benchmark in turn (each a file benchmarks/bench_*.py)
	@set -e; for file in benchmarks/bench_*.py; do \
		[ -e "$$file" ] || { echo "no benchmarks yet"; break; }; \
		module=$$(basename "$$file" .py); echo "== $$module"; $(BIN)/python -m "benchmarks.$$module"; \
	done

FUZZ_SECONDS ?= 60

fuzz: $(VENV)/.installed-dev ## coverage-guided fuzzing of reading, FUZZ_SECONDS (60) long; installs atheris
	$(BIN)/python -m pip install --quiet atheris || { echo "atheris has no wheel for this Python: try 3.11 or 3.12" >&2; exit 1; }
	$(BIN)/python -m tests.fuzz.fuzz_stream --seconds $(FUZZ_SECONDS)

clean: ## remove the environment, caches and generated data
	rm -rf $(VENV) $(AGENTCOMPASS_VENV) site build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis benchmarks/data benchmarks/results
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
