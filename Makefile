# `make demo` and `make test` work from a fresh clone: they make .venv and install into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# On Linux mlx needs a backend: EXTRAS=cpu (default) or EXTRAS=cuda. On a Mac mlx brings Metal.
EXTRAS ?= cpu

.PHONY: demo test check install lint types identity long clean
demo: install
	$(BIN)/dflash generate --max-tokens 96 --stats --no-gate --no-stored-probe </dev/null
	$(BIN)/dflash generate --speculation dflash --max-tokens 64 --no-gate --no-stored-probe </dev/null
	$(BIN)/dflash generate --speculation mtp --max-tokens 64 --no-gate --no-stored-probe </dev/null

test: install lint types
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Lint, types and the tests marked `quick`: under a minute, for between two edits.
check: install lint types
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m quick

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

identity: install
	$(BIN)/python -m tests.long.identity

long: install
	$(BIN)/python -m tests.long

# Another EXTRAS or PYTHON is another environment: the stamp is named after both.
STAMP := $(VENV)/.installed-$(EXTRAS)-$(notdir $(PYTHON))
install: $(STAMP)

$(STAMP): pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit("dflash needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -e '.[$(EXTRAS),dev]'
	touch $@

clean:
	rm -rf $(VENV)
