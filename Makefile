# image-matrix: thin targets over the command line. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
ONLY ?=
ARGS ?=
IMAGE_MATRIX := .venv/bin/image-matrix
PYTEST := .venv/bin/python -m pytest

.PHONY: help setup matrix plan table test test-unit test-engine test-cuda check lint render schema cases readme lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "variables: ONLY='slim-* ngc-24.*' (which images), ARGS='--gpu required' (more options), PYTHON, DOCKER_HOST"

setup: ## make .venv with the locked dependencies and see that a Docker engine answers
	@scripts/setup --engine

matrix: setup ## test every image that is not known yet, then print the table: make matrix ONLY='slim-*'
	@$(IMAGE_MATRIX) matrix $(ARGS) -- $(ONLY)

plan: setup ## show what `make matrix` would do
	@$(IMAGE_MATRIX) matrix --dry-run $(ARGS) -- $(ONLY)

table: ## print the table of what is known, without an engine
	@scripts/setup && $(IMAGE_MATRIX) table $(ARGS) -- $(ONLY)

test: ## all checks and tests; brings an engine where there is none
	@scripts/setup --dev --engine && scripts/ensure-registry
	@$(MAKE) --no-print-directory check
	@$(PYTEST) tests/unit tests/engine -m "not cuda_image" $(ARGS)

test-unit: ## the tests that need no engine
	@scripts/setup --dev
	@$(PYTEST) tests/unit $(ARGS)

test-engine: ## the tests with a real engine and real images
	@scripts/setup --dev --engine && scripts/ensure-registry
	@$(PYTEST) tests/engine -m "not cuda_image" $(ARGS)

test-cuda: ## the tests that build CUDA images of several GB
	@scripts/setup --dev --engine
	@$(PYTEST) tests/engine -m cuda_image $(ARGS)

check: ## ruff, mypy, the matrix file, the rendered Dockerfiles
	@scripts/setup --dev
	@.venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy
	@$(IMAGE_MATRIX) lint && $(IMAGE_MATRIX) render --check

lint: ## check images.yaml and the templates
	@scripts/setup && $(IMAGE_MATRIX) lint

render: ## write the Dockerfiles of all images to dockerfiles/rendered/
	@scripts/setup && $(IMAGE_MATRIX) render

schema: ## write images.schema.json
	@scripts/setup && $(IMAGE_MATRIX) schema --write

cases: ## write validator/probe/cases.json from the probe
	@scripts/setup && .venv/bin/python validator/probe/probe.py --list > validator/probe/cases.json

readme: ## renew what is written from results/: the tables in the READMEs, docs/findings.md and docs/claims.md
	@scripts/setup && $(IMAGE_MATRIX) table --profiles --into README.md && $(IMAGE_MATRIX) table --profiles --into README.zh-CN.md
	@$(IMAGE_MATRIX) table --into docs/table.md
	@.venv/bin/python scripts/docs

lock: ## renew the lock files (needs the Python package index)
	@scripts/setup --dev && scripts/lock

clean: ## remove our containers and build stages from the engine, and nothing else
	@scripts/setup && $(IMAGE_MATRIX) clean $(ARGS)
