# `make demo` runs the main job, `make test` the tests, `make test-all` also the longer ones, and
# `make docs` makes a site of the pages in docs/.
# Each creates the virtual environments that it needs, with the versions of a constraints file.

PYTHON ?= python3
# The newest Python that the package is for, with the newest libraries; PYTHON where it is missing.
# PyPI's PyTorch may be a build for CUDA there, of 3 GB.
NEWEST_PYTHON ?= $(shell python3.13 -c '' 2> /dev/null && echo python3.13 || echo $(PYTHON))
CODE = src tests tools benchmarks

.PHONY: demo docs test test-all clean

demo: .venv/.installed
	.venv/bin/crammed run demo

docs: .venv-docs/.installed
	.venv-docs/bin/mkdocs build --strict
	@echo "open site/index.html"

# Types are checked beside the tests: mypy keeps one core busy, and the tests all.
test: .venv-test/.installed
	.venv-test/bin/ruff format --check $(CODE)
	.venv-test/bin/ruff check $(CODE)
	.venv-test/bin/mypy & types=$$!; \
	.venv-test/bin/pytest -n auto --dist worksteal; tests=$$?; \
	wait $$types && exit $$tests

# The results are written to records/test-all/output.txt, which is committed.
test-all: .venv-test/.paper .venv-oldest/.installed .venv-newest/.installed .venv-docs/.installed
	.venv-test/bin/python tools/test_all.py

.venv/.installed: pyproject.toml constraints.txt
	$(call environment,.venv,.[hf$(comma)linear],constraints.txt)

.venv-docs/.installed: pyproject.toml constraints.txt
	$(call environment,.venv-docs,.[docs],constraints.txt)

.venv-test/.installed: pyproject.toml constraints.txt
	$(call environment,.venv-test,$(EVERYTHING),constraints.txt)

# Triton is a third of the environment, and `make test` does without it.
.venv-test/.paper: .venv-test/.installed
	.venv-test/bin/python $(PIP_INSTALL) --constraint constraints.txt --editable '.[paper]'
	@touch $@

.venv-oldest/.installed: pyproject.toml constraints-oldest.txt
	$(call environment,.venv-oldest,$(LIBRARIES),constraints-oldest.txt)

.venv-newest/.installed: pyproject.toml constraints-newest.txt
	$(call environment,.venv-newest,$(LIBRARIES),constraints-newest.txt,$(NEWEST_PYTHON))

comma := ,
EVERYTHING = .[hf$(comma)data$(comma)dedup$(comma)entities$(comma)language$(comma)pandas$(comma)ray$(comma)remote$(comma)unigram$(comma)web$(comma)dev]
LIBRARIES = .[hf$(comma)unigram$(comma)web$(comma)test$(comma)exports]

# pip would compile on one core; `compileall` uses all. Packages' templates may fail, harmlessly.
PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --no-compile

define environment
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	{ echo "crammed needs Python 3.11 or newer: try make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
@echo "making $(1) with the versions of $(3) (a minute or two)"
$(or $(4),$(PYTHON)) -m venv --clear $(1)
$(1)/bin/python $(PIP_INSTALL) --constraint $(3) --editable '$(2)'
@$(1)/bin/python -m compileall -q -j 0 $(1)/lib > /dev/null 2>&1 || true
@touch $(1)/.installed
endef

clean:
	rm -rf site .venv .venv-docs .venv-test .venv-oldest .venv-newest .pytest_cache .mypy_cache .ruff_cache .hypothesis
