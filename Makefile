# Everything runs in .venv, made by uv from uv.lock. Needs only Python 3.11+, pip and make.
PYTHON ?= python3
UV     := .tools/bin/uv
BIN    := .venv/bin
READY  := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint format clean

help:            ## show this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 24

setup: $(READY)  ## make the virtual environment (about 700 MB, one to three minutes the first time)

$(UV):
	@echo "Fetching uv, the installer (30 MB) ..."
	@$(PYTHON) -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --target .tools 'uv>=0.9,<1'

$(READY): uv.lock pyproject.toml | $(UV)
	@echo "Installing Warmpath and what it needs into .venv from uv.lock: about 700 MB, one to three minutes the first time ..."
	@$(UV) sync --quiet --locked --all-extras --python $(PYTHON)
	@touch $@

demo: $(READY)   ## roll out a model twice on an embedded fleet and show what was gained (KEEP=1 leaves it running)
	@$(BIN)/warmpath demo $(if $(KEEP),--keep)

test: $(READY)   ## run the tests
	@$(BIN)/pytest

lint: $(READY)   ## ruff, mypy strict, and who may import whom
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## put the code in its house style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

clean:           ## remove the virtual environment and the state of `warmpath up` (stop it first: warmpath down)
	rm -rf .venv .tools .warmpath
