# `make` alone says what there is. Every target sets up what it needs first.
.DEFAULT_GOAL := help
.PHONY: help setup check test test-e2e chart-check compose-smoke bare-metal chaos demo bench bench-memory proto

PYTHON_BIN := .venv/bin/python

help: ## show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: ## make .venv with pinned packages, and the two small models (quick when done)
	@scripts/setup.sh

check: setup ## format, lint, types, generated stubs: no network, changes nothing
	@scripts/check.sh

test: check ## all tests, with real servers on free ports
	@$(PYTHON_BIN) -m pytest --numprocesses 2 --dist loadgroup

test-e2e: setup ## only the end-to-end tests: whole stacks that train
	@$(PYTHON_BIN) -m pytest tests/e2e

chart-check: setup ## the Helm chart: lint, render, Kubernetes' schemas, tests, and a rehearsal that trains
	@scripts/chart_check.sh

compose-smoke: setup ## build the images, start the compose stack with podman, train, stop (needs root)
	@scripts/compose_smoke.sh

bare-metal: setup ## docs/bare-metal.md executed, and a Slurm job with stand-ins for srun
	@scripts/bare_metal.sh

chaos: setup ## kill random services with -9 in several runs, audit each, replay the weights bit for bit (20 min)
	@$(PYTHON_BIN) -m tests.chaos --real 2 --simulated 2 --kills 60

demo: setup ## train SmolLM2-135M on this machine, with a summary and a plot at the end
	@.venv/bin/sluice demo

bench: setup ## every benchmark; tables here, figures in artifacts/bench/
	@for file in $(filter-out bench/memory_bench.py,$(wildcard bench/*_bench.py)); do $(PYTHON_BIN) "$$file" || exit 1; done

bench-memory: setup ## the memory of every service over 100,000 groups (10 to 20 min)
	@$(PYTHON_BIN) bench/memory_bench.py

proto: setup ## generate sluice/wire/v1 from proto/
	@scripts/proto.sh
