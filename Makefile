# Placewise: every task of a developer, by name. A fresh machine needs Python ≥ 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUBS_BIN := .venv-stubs/bin
INSTALLED := $(VENV)/.installed
CONTRACT := proto/contract.binpb
# The release that `make attack` compares with.
BEFORE ?= 0ce0bd2

.DEFAULT_GOAL := help
.PHONY: e2e-kubernetes
.PHONY: e2e-compose bench
.PHONY: e2e-slurm
.PHONY: attack attack-quick bench-compare
.PHONY: help install run test lint openapi settings-doc readme fuzz stubs stubs-check freeze-contract clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "torch==2.13.0"   # first and pinned: a CPU build; a range would pull CUDA
	$(BIN)/pip install --quiet --editable ".[service,otel,training,dev]"
	touch $@

# Compiled once rather than at every start where the environment forbids Python to write bytecode (0.6 s of a start).
install: $(INSTALLED) ## Make the virtual environment
	@$(BIN)/python -m compileall -q service training clients tests

run: install ## Start the service on its embedded Redis, with a sample cluster
	$(BIN)/placewise serve --demo

test: install lint stubs-check ## Lint, types, import contracts, and every test but the heavy end-to-end ones
	$(BIN)/pytest -m "not e2e_heavy" --numprocesses auto --maxprocesses 4 --dist loadfile

JWT_PLUGIN = /usr/lib/$(shell uname -m)-linux-gnu/slurm-wlm/auth_jwt.so
SLURM_PACKAGES = slurm-wlm slurm-wlm-basic-plugins slurm-wlm-jwt-plugin slurm-client slurmrestd lua-socket lua5.3

e2e-slurm: install ## A real Slurm of 16 nodes × 8 GPUs on this machine, with faults; installs Debian's packages as root
	$(BIN)/python -m tests.e2e.packages slurmctld,slurmd,slurmrestd,sbatch,$(JWT_PLUGIN) $(SLURM_PACKAGES)
	GRPC_ENABLE_FORK_SUPPORT=0 $(BIN)/pytest -m e2e_heavy -s tests/e2e/test_slurm_e2e.py

# KUBEBUILDER_ASSETS, or a build from Debian's source package, kept in ~/.cache. Where neither can be had (75), that is
# said, and is a failure only where PLACEWISE_TEST_REQUIRE_SCHEDULERS asks for it.
e2e-kubernetes: install ## A real apiserver, etcd and kube-scheduler with fake nodes; KUBEBUILDER_ASSETS, or built once
	test -n "$$KUBEBUILDER_ASSETS" || test -x ~/.cache/placewise/kubernetes/bin/kube-scheduler || \
	  $(BIN)/python -m tests.e2e.packages dpkg-source,/usr/lib/go-1.19/bin/go golang-1.19-go dpkg-dev
	assets=$$($(BIN)/python -m tests.e2e.kubernetes_binaries) || { code=$$?; \
	  test $$code -eq 75 -a -z "$$PLACEWISE_TEST_REQUIRE_SCHEDULERS" || exit $$code; echo "SKIPPED: e2e-kubernetes"; exit 0; }; \
	KUBEBUILDER_ASSETS="$$assets" $(BIN)/pytest -m e2e_heavy -s tests/e2e/test_kubernetes_*.py

lint: install ## ruff, mypy strict, import-linter, and the contract: buf lint, no breaking change
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/buf breaking --against $(CONTRACT)

$(STUBS_BIN)/python:
	$(PYTHON) -m venv .venv-stubs
	$(STUBS_BIN)/pip install --quiet "grpcio-tools==1.66.2" "setuptools<80"   # the oldest supported: newer gencode refuses older runtimes

PROTOC = $(STUBS_BIN)/python -m grpc_tools.protoc -I proto --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) \
  proto/placewise/v1/*.proto

stubs: $(STUBS_BIN)/python ## Regenerate the committed gRPC stubs
	$(call PROTOC,clients/python)

stubs-check: $(STUBS_BIN)/python ## Fail where the committed stubs differ from proto/
	rm -rf build/stubs && mkdir -p build/stubs
	$(call PROTOC,build/stubs)
	diff -r --exclude=__init__.py --exclude=__pycache__ build/stubs/placewise clients/python/placewise/ -x py.typed

freeze-contract: install ## Make today's proto/ what later changes may not break
	$(BIN)/buf build -o $(CONTRACT)

openapi: install ## Write the OpenAPI document that a test compares with the contract
	$(BIN)/python -m placewise_service.api.openapi > tests/golden/openapi.json

readme: install ## Print README's answers anew, as a fresh service gives them
	$(BIN)/python -m tests.e2e.readme_calls

settings-doc: install ## Write docs/settings.md
	$(BIN)/python -m placewise_service.settings > docs/settings.md

e2e-compose: install ## Build and run docker-compose.yml, kill a replica and Redis; skips where there is no engine
	$(BIN)/python tests/e2e/compose.py

bench: install ## Latency, throughput and memory against their budgets, as ratios to a bare gRPC echo
	$(BIN)/python tests/bench/budgets.py

bench-compare: install ## The benchmarks of the release before and of this tree by turns, five rounds
	rm -rf build/before && git worktree prune && git worktree add --quiet --detach build/before $(BEFORE)
	$(BIN)/python -m tests.bench.compare --before build/before; code=$$?; git worktree remove --force build/before; exit $$code

fuzz: install ## 20 000 random requests to both faces in one process, 200 000 to a started service
	PLACEWISE_TEST_FUZZ_CASES=20000 $(BIN)/pytest -q tests/e2e/test_fuzz_faces.py
	PYTHONPATH=clients/slurm:clients/kubernetes $(BIN)/python -m tests.attack --only fuzz

attack: install ## Attack a running service and adapter, the release before and this tree, and write docs/reliability.md
	rm -rf build/before && git worktree prune && git worktree add --quiet --detach build/before $(BEFORE)
	PYTHONPATH=clients/slurm:clients/kubernetes $(BIN)/python -m tests.attack --before build/before --write docs/reliability.md --json build/attack.json; \
	  code=$$?; git worktree remove --force build/before; exit $$code

attack-quick: install ## The short attacks against this tree alone, in at most five minutes
	PYTHONPATH=clients/slurm:clients/kubernetes $(BIN)/python -m tests.attack --quick --limit-s 280

clean: ## Remove what the targets made
	rm -rf $(VENV) .venv-stubs var build dist
