.DEFAULT_GOAL := help
.PHONY: help install test lint format types check audit docs smoke clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install:  ## the locked environment, and the commit hooks
	uv sync --locked
	uv run pre-commit install

test:  ## all tests; UNIMOE_DATA=DIR adds those on real collections
	uv run pytest

lint:  ## style and mistakes, without changing anything
	uv run ruff check .
	uv run ruff format --check .

format:  ## fix style where a tool can
	uv run ruff check --fix .
	uv run ruff format .

types:  ## mypy, strict
	uv run mypy

docs:  ## the manual as a site in site/, with its generated pages rewritten
	uv run python docs/configuration.py
	uv run python docs/notebook.py
	NO_MKDOCS_2_WARNING=1 uv run --group docs mkdocs build --strict

check: lint types test  ## what a change has to pass

audit:  ## compare the locked packages with published advisories; needs a network
	uv audit --locked --preview-features audit-command

smoke:  ## the main job at its smallest, offline: train, evaluate, judge
	uv run scripts/run_experiment.py --smoke --output-dir outputs/smoke

clean:  ## caches and builds; outputs stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
	find src scripts benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
