# Every task of the project; `make help` lists them. Needs only Python 3.11 or newer.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
MODEL  := artifacts/all-MiniLM-L6-v2
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PINNED := pyproject.toml client/pyproject.toml constraints.txt
# One more than there are cores, up to 4, as tests of servers wait much.
TEST_PROCESSES ?= $(shell $(PYTHON) -c 'import os; print(min(4, (os.cpu_count() or 1) + 1))')
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
# cpu, cuda or exporter, built by whichever of these is there.
TARGET  ?= cpu
BUILDER ?= $(firstword $(foreach tool,docker podman buildah,$(if $(shell command -v $(tool)),$(tool))))
IMAGE   := $(if $(filter exporter,$(TARGET)),seqenc-exporter,seqenc):$(VERSION)$(if $(filter cuda,$(TARGET)),-cuda)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install serve test test-ray test-chaos test-oldest check bench bench-peers gpu-check image image-test sbom \
	check-security format proto docs clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		printf '  make %-12s %s\n' "$$target" "$$text"; done

serve: $(VENV)/.installed-serve $(MODEL)/manifest.json  ## the server in the foreground, with the default model
	@exec $(BIN)/seqenc serve --artifact $(MODEL)

test: $(VENV)/.installed-dev  ## the whole test suite, on all cores
	@exec $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

test-chaos: $(VENV)/.installed-dev  ## faults under load, for some minutes; its short form is in `make test`
	@exec $(BIN)/python -m pytest tests/chaos --chaos-s 45

test-oldest: build/oldest/.installed  ## the client's tests with the oldest packages that it takes; Python 3.11
	@exec build/oldest/bin/python -m pytest tests/client --confcutdir=tests/client $(ARGS)

test-ray: $(VENV)/.installed-dev  ## tests of jobs on a Ray cluster of two nodes; installs Ray
	@$(PIP) -e '.[cpu,export,dev,ray]'
	@exec $(BIN)/python -m pytest tests/jobs/test_encode_ray.py

install: $(VENV)/.installed-dev  ## everything into .venv, tests and checks included

check: $(VENV)/.installed-dev  ## lint, format, types, imports, drift of generated files
	@echo "==> ruff";          $(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo "==> mypy --strict"; $(BIN)/mypy
	@echo "==> import-linter"; $(BIN)/lint-imports
	@echo "==> protobuf stubs"; PYTHONPATH=tests $(BIN)/python -m contract.stubs --check
	@echo "==> README tables"; $(BIN)/python tests/contract/readme_tables.py --check

bench: $(VENV)/.installed-bench $(MODEL)/manifest.json  ## speeds on this machine; ARGS=--help lists what it takes
	@PYTHONPATH=.:tests exec $(BIN)/python -m bench.run $(ARGS)

bench-peers: $(VENV)/.installed-bench $(MODEL)/manifest.json  ## the same texts through what else there is
	@PYTHONPATH=.:tests exec $(BIN)/python -m bench.peers $(ARGS)

gpu-check: $(MODEL)/manifest.json  ## parity and speed on a CUDA GPU, in an environment of its own
	@test -x .venv-gpu/bin/pip || $(PYTHON) -m venv .venv-gpu
	@echo "==> installing the server for CUDA into .venv-gpu"
	@.venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e client -e '.[gpu]' psutil
	@PYTHONPATH=.:tests exec .venv-gpu/bin/python -m bench.gpu_check --artifact $(MODEL) $(ARGS)

# OCI's own format, the default of podman and buildah, has no HEALTHCHECK.
image: export BUILDAH_FORMAT := docker
image:  ## the container image; TARGET=cpu|cuda|exporter, ARGS="--build-arg NO_MODEL=1"
	@$(BUILDER) build $(ARGS) --target $(TARGET) --build-arg REVISION=$$(git rev-parse HEAD) --tag $(IMAGE) .

image-test: export STORAGE_DRIVER := vfs
image-test: export BUILDAH_ISOLATION := chroot
image-test:  ## builds the image with buildah and runs it as a cluster would; needs root
	@$(MAKE) --no-print-directory image BUILDER=buildah TARGET=cpu
	@$(PYTHON) tests/deploy/image_check.py localhost/seqenc:$(VERSION)

# Our own packages come from /src, as in the image, and not from a folder of this machine.
sbom: build/runtime/.installed build/audit/.installed  ## what the server consists of, to build/sbom.json (CycloneDX)
	@build/audit/bin/cyclonedx-py environment --output-reproducible --of JSON -o build/sbom.json build/runtime/bin/python
	@sed -i.bak 's|file://$(CURDIR)|file:///src|' build/sbom.json && rm build/sbom.json.bak
	@echo "wrote build/sbom.json"

check-security: build/runtime/.installed build/audit/.installed  ## known vulnerabilities of what the server consists of
	@$(PYTHON) -m pip --python build/runtime freeze --exclude seqenc --exclude seqenc-client > build/runtime/packages.txt
	@PIP_AUDIT_LOGLEVEL=ERROR build/audit/bin/pip-audit --strict --no-deps --disable-pip \
		--requirement build/runtime/packages.txt || { \
		echo "check-security: not passed. If no vulnerability is listed above, pypi.org did not answer about a" \
			"package (is it behind a proxy or a mirror?), and nothing was audited." >&2; exit 1; }

format: $(VENV)/.installed-dev  ## formats the code, sorts the imports
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

proto: $(VENV)/.installed-dev  ## writes the stubs of protos/
	@PYTHONPATH=tests $(BIN)/python -m contract.stubs --write

docs: $(VENV)/.installed-dev  ## writes the README's tables from the code
	@$(BIN)/python tests/contract/readme_tables.py --write

clean:  ## removes .venv, the artifacts and every cache
	@rm -rf $(VENV) artifacts build dist *.egg-info client/*.egg-info .coverage
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find client model service tests -name __pycache__ -prune -exec rm -rf {} +

$(MODEL)/manifest.json: | $(VENV)/.installed-serve
	@echo "==> exporting the default model to $(MODEL), once: under a minute"
	@$(BIN)/seqenc-model export default --out $(MODEL)

$(VENV)/bin/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "seqenc needs Python 3.11 or newer, and '$(PYTHON)' is not; name one: make PYTHON=python3.12 ..." >&2; \
		exit 1; }
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-serve: $(PINNED) | $(VENV)/bin/pip
	@echo "==> installing the server and the exporter (PyTorch included) into $(VENV): a minute or two"
	@$(PIP) -e client -e '.[cpu,export]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-serve
	@echo "==> installing what tests and checks need into $(VENV)"
	@$(PIP) -e '.[cpu,export,dev]'
	@touch $@

$(VENV)/.installed-bench: tests/bench/requirements.txt $(VENV)/.installed-dev
	@echo "==> installing what the benchmarks need into $(VENV)"
	@$(PIP) -r tests/bench/requirements.txt
	@touch $@

# The client with the lower bound of each of its requirements.
build/oldest/.installed: client/pyproject.toml
	@echo "==> installing the client and its oldest packages into build/oldest"
	@rm -rf build/oldest
	@$(PYTHON) -m venv build/oldest
	@sed -nE 's/^ +"([a-z-]+)>=([0-9.]+).*/\1==\2/p' client/pyproject.toml > build/oldest/constraints.txt
	@build/oldest/bin/python -m pip install --quiet --disable-pip-version-check --only-binary=:all: \
		-c build/oldest/constraints.txt -e client pytest pytest-asyncio grpcio-health-checking trustme
	@touch $@

# The server as an image has it: no pip, no PyTorch.
build/runtime/.installed: $(PINNED)
	@echo "==> installing the server alone into build/runtime"
	@rm -rf build/runtime
	@$(PYTHON) -m venv --without-pip build/runtime
	@$(PYTHON) -m pip --python build/runtime install --quiet --disable-pip-version-check -c constraints.txt ./client '.[cpu]'
	@touch $@

build/audit/.installed: tests/deploy/audit-requirements.txt
	@$(PYTHON) -m venv build/audit
	@build/audit/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@
