# One clone needs only python3.11 and python3.12 (on PATH or under pyenv), git and make.
# Heavy dependencies live in the user's cache (environments/build.py); .venv adds this clone on top.

PYTHON := $(firstword $(foreach p,python3.11 python3 python3.12,$(shell $(p) -c 'print("$(p)")' 2>/dev/null)))
VENV := .venv
JOBS ?= 2

.PHONY: setup demo proof proof-tpu test test-fork-on-maxtext lint bench format clean

setup: $(VENV)/.ready

$(VENV)/.ready: setup.cfg environments/build.py environments/*.txt
	@test -n "$(PYTHON)" || { echo "python3.11 is missing: put it on PATH or install it with pyenv" >&2; exit 2; }
	@toolkit=$$($(PYTHON) environments/build.py toolkit) && \
	  $(PYTHON) environments/build.py maxtext >/dev/null && \
	  rm -rf $(VENV) && $$toolkit -m venv --without-pip $(VENV) && \
	  site=$$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') && \
	  $$toolkit -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > $$site/toolkit.pth && \
	  $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && \
	  touch $@

demo: setup
	@$(VENV)/bin/python demo/run.py

test: lint
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist worksteal tests
	$(MAKE) --no-print-directory test-fork-on-maxtext

# The fork is copied into MaxText checkouts, so its tests also run on MaxText's Python and JAX.
test-fork-on-maxtext: setup
	PYTHONPATH=. $$($(PYTHON) environments/build.py maxtext) -m pytest -p no:cacheprovider tests/fork

lint: setup
	$(VENV)/bin/python -m ruff check .
	$(VENV)/bin/python -m ruff format --check .
	$(VENV)/bin/python -m mypy

format: setup
	$(VENV)/bin/python -m ruff check --fix-only .
	$(VENV)/bin/python -m ruff format .

# Every training case for 1300 steps: hours. What is done stays in out/proof; ROWS names some.
proof: setup
	$(VENV)/bin/python -m checks.proof --out out/proof $(ROWS:%=--row %) \
	  --releases $$($(PYTHON) environments/build.py releases) \
	  --python $$($(PYTHON) environments/build.py maxtext)
	$(if $(ROWS),,$(MAKE) --no-print-directory proof-tpu)

# What the TPU's own compiler makes of a migrated train step: minutes; the compiler takes 500 MB.
proof-tpu: setup
	@mkdir -p out/proof
	$(VENV)/bin/muon-check parity --case tpu_compile \
	  --maxtext $$($(PYTHON) environments/build.py releases)/0.2.5 \
	  --python $$($(PYTHON) environments/build.py maxtext-tpu) \
	  --json out/proof/tpu.json --html out/proof/tpu.html

bench: setup
	$(VENV)/bin/python -m benchmarks

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
