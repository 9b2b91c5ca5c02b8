# make serve | make test | make check | make bench - each prepares .venv by itself; only python3 (3.11 or newer) is needed.
PYTHON ?= python3
BIN := .venv/bin
PAGE := service/dashboard/static/vendor/manifest.json

.PHONY: serve test test-slow check format bench lock clean

serve: .venv/.serve $(PAGE)
	$(BIN)/livewick serve

test: .venv/.dev $(PAGE)
	$(BIN)/pytest -n 2 --dist loadgroup -m "not slow"

test-slow: .venv/.dev $(PAGE)
	$(BIN)/pytest -m slow --timeout 3600

check: .venv/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/.dev
	$(BIN)/python -m benchmarks

.venv/.serve: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Livewick needs Python 3.11 or newer; set PYTHON=/path/to/python3")'
	@echo "installing into .venv (about a minute the first time)"
	@test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[build]'
	@touch $@

.venv/.dev: .venv/.serve
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# Third-party files of the page, from the pinned lock, served locally.
$(PAGE): service/dashboard/package-lock.json | .venv/.serve
	@$(BIN)/python -m service.dashboard.build && touch $@ || echo "the page will have no charts; everything else works"

# Renew the pinned versions from what .venv holds after an upgrade by hand.
lock:
	@(echo "# Every version that make, CI and Docker install (pip -c). Renew with: make lock"; \
	  $(BIN)/pip freeze --exclude-editable | sed 's/^torch==\([0-9.]*\).*/torch==\1/') > constraints.txt

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache service/dashboard/static/vendor
