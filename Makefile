# One command from a bare machine (Python 3.11 or newer, no root) to the report:
#
#     make reproduce
#
# `make help` lists the rest. The environment lies in .venv, exactly as requirements.lock says; MPI is part of it.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
CORES ?= all
# A Python of your own choice: make reproduce PYTHON=/opt/python3.11/bin/python3
PYTHON ?=
PYTEST_ARGS ?=
# The target that `make snakemake-report` is of; all unless given.
OF ?=
# Kills of `make kills`.
COUNT ?= 100
# Test files side by side: many of them start several processes of their own.
JOBS ?= 2
# Ranks that the MPI tests run on.
RANKS ?= 1 2 3 4
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH"

.PHONY: help reproduce smoke report figures pack crate snakemake-report kills test lint format bench doctor setup clean

help: ## this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

reproduce: setup ## everything: environment, data, runs, report (CORES=2 limits the cores)
	@$(RUN) snakemake --cores $(CORES) data
	@$(RUN) snakemake --cores $(CORES)

smoke: setup ## the same at its smallest, in about two minutes
	@$(RUN) snakemake --cores $(CORES) smoke

report: setup ## tables, figures and report again, from the runs that there are
	@$(RUN) snakemake --cores $(CORES) report

figures: setup ## tables, figures and report of the committed run (results/reference) into reports/reference
	@$(RUN) python -m implementations reference

pack: setup ## put the outcome of the default run that there is into results/reference
	@$(RUN) python -m implementations reference --pack

crate: setup ## a finished run in one archive that describes itself: results/crate.zip (an RO-Crate)
	@$(RUN) python -m implementations crate

# Of a default run; after `make smoke`: make snakemake-report OF=smoke
snakemake-report: setup ## Snakemake's own report of a finished run: reports/snakemake.zip
	@$(RUN) snakemake --cores 1 --report reports/snakemake.zip $(OF)

kills: setup ## kill smoke runs at random moments, and see that each finishes (COUNT=100, hours)
	@$(RUN) python tests/kills/kills.py --count $(COUNT)

test: setup lint ## the tests: once, then those for MPI on 1, 2, 3 and 4 ranks
	@$(RUN) python -m pytest --ignore=tests/mpi -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
	@for ranks in $(RANKS); do \
	  echo "== tests/mpi on $$ranks rank(s)"; \
	  $(RUN) mpiexec -n $$ranks python -m pytest tests/mpi -o timeout_method=thread -p no:cacheprovider -q $(PYTEST_ARGS); \
	done

lint: setup ## style of the code
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) snakefmt --check Snakefile

format: setup ## rewrite the code in that style
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .
	@$(RUN) snakefmt Snakefile

bench: setup ## speed against other libraries, and of the parts
	@$(RUN) python -m benchmarks

doctor: setup ## what works on this machine, and how to mend what does not
	@$(RUN) python -m implementations doctor

# The copy of the lock inside the environment is written last: an interrupted set-up starts afresh the next time. A lock
# that has changed is installed over what is there; a folder that was moved is set up anew (scripts name their place).
setup: ## the environment alone
	@usable=''; \
	if [ -f $(VENV)/requirements.lock ] && $(VENV)/bin/python -c '' 2>/dev/null \
	  && grep -qF '$(CURDIR)/$(VENV)/' $(VENV)/bin/pip; then usable=yes; fi; \
	if [ -n "$$usable" ] && cmp -s requirements.lock $(VENV)/requirements.lock; then exit 0; fi; \
	python=''; \
	for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3 python); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.11 or newer found$(if $(PYTHON), at $(PYTHON)). Install one, or name it: make reproduce PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
	  echo "$$python has no venv module. On Debian and Ubuntu: install python3-venv; or name another Python: PYTHON=..." >&2; exit 1; \
	fi; \
	rm -f $(VENV)/requirements.lock; \
	if [ -z "$$usable" ]; then "$$python" -m venv --clear $(VENV); fi; \
	echo "Installing $$(grep -c == requirements.lock) packages (2 GB) into $(VENV) with $$($(VENV)/bin/python --version): one to five minutes, once."; \
	start=$$SECONDS; \
	if ! $(VENV)/bin/python -m pip install -qq --no-input --disable-pip-version-check --log $(VENV)/pip.log -r requirements.lock; then \
	  echo "The installation failed; the whole story is in $(VENV)/pip.log. Mend the cause (network, disk space), and start again." >&2; exit 1; \
	fi; \
	cp requirements.lock $(VENV)/requirements.lock; \
	echo "Installed in $$((SECONDS - start)) s."

clean: ## remove what was made: results (runs and data included), reports, caches; keeps the environment
	@find results -mindepth 1 -maxdepth 1 ! -name README.md ! -name reference -exec rm -rf {} +
	@find reports -mindepth 1 -maxdepth 1 ! -name README.md ! -name '*.svg' ! -name '*.png' -exec rm -rf {} +
	@rm -rf .snakemake .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -not -path './$(VENV)/*' -exec rm -rf {} +
