# Two commands do everything: `make demo` runs the main job, `make test` passes the tests.
# Each makes its own virtual environment with the pinned versions of constraints.txt.

PYTHON ?= python3
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test clean

demo: .venv/.installed
	.venv/bin/crammed run demo

test: .venv-test/.installed
	.venv-test/bin/ruff format --check src tests tools benchmarks
	.venv-test/bin/ruff check src tests tools benchmarks
	.venv-test/bin/mypy
	.venv-test/bin/pytest -n auto

.venv/.installed: pyproject.toml constraints.txt
	$(call environment,.venv,.[hf])

.venv-test/.installed: pyproject.toml constraints.txt
	$(call environment,.venv-test,.[hf$(comma)data$(comma)dedup$(comma)ray$(comma)unigram$(comma)dev])

comma := ,
define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "crammed needs Python 3.11 or newer: try make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
@echo "making $(1) with the pinned versions (a minute or two)"
$(PYTHON) -m venv --clear $(1)
$(1)/bin/python $(PIP_INSTALL) --editable '$(2)'
@touch $(1)/.installed
endef

clean:
	rm -rf .venv .venv-test .pytest_cache .mypy_cache .ruff_cache .hypothesis
