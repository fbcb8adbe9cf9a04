.DEFAULT_GOAL := help
.PHONY: help install test test-light lint format types check audit docs smoke dist benchmarks benchmarks-short clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install:  ## the locked environment, and the commit hooks
	uv sync --locked
	uv run pre-commit install

test:  ## all tests; UNIMOE_DATA=DIR adds those on real collections
	uv run pytest

test-light:  ## the judge's tests without torch; RESOLUTION=lowest-direct with the lowest versions allowed
	scripts/test_light.sh $(RESOLUTION)

lint:  ## style and mistakes, without changing anything
	uv run ruff check .
	uv run ruff format --check .
	uv run zizmor --offline --quiet .github action.yml

format:  ## fix style where a tool can
	uv run ruff check --fix .
	uv run ruff format .

types:  ## mypy, strict
	uv run mypy

docs:  ## the manual as a site in site/, with its generated pages rewritten
	uv run python docs/configuration.py
	uv run python docs/notebook.py
	uv run python docs/benchmarks.py
	NO_MKDOCS_2_WARNING=1 uv run --group docs mkdocs build --strict

check: lint types test  ## what a change has to pass

audit:  ## compare the locked packages with published advisories; needs a network
	uv audit --locked --preview-features audit-command

smoke:  ## the main job at its smallest, offline: train, evaluate, judge
	uv run scripts/run_experiment.py --smoke --output-dir outputs/smoke

dist:  ## wheel and sdist in dist/, checked as an index checks them; needs one
	rm -rf dist
	uv build --out-dir dist
	uv run --isolated --locked --only-group release twine check --strict dist/*
	uv run --isolated --locked --only-group release check-wheel-contents dist

benchmarks:  ## all scripts of benchmarks/, a line each in benchmarks/history.jsonl; takes hours
	uv run --group benchmarks --extra cluster benchmarks/every.py
	uv run python docs/benchmarks.py

benchmarks-short:  ## those that are short, at small sizes, in minutes
	uv run --group benchmarks benchmarks/every.py --short

clean:  ## caches and builds; outputs stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
	find src scripts benchmarks tests -name __pycache__ -type d -prune -exec rm -rf {} +
