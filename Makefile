# Two commands: `make demo` trains on heat diffusion, fits real data and writes one page about both; `make test` runs
# every check.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test lint types layers unit quick wheel docs docs-links report bench simulate simulate-ensemble sanitize gpu-compile zoo clean

# At most three minutes: the paper's headline, and temperatures in one scenario of emissions from those in another, the
# fit of README's picture. One thread, with which that table was made: sums of two threads round otherwise.
DATA = $$($(BIN)/python -c "import iris_sample_data; print(iris_sample_data.path)")
demo: export OMP_NUM_THREADS = 1
demo: $(READY)
	$(BIN)/smoe train heat/smoe --seed 0 --output-dir runs/demo/heat --resume
	rm -rf runs/demo/scenario
	$(BIN)/smoe fit $(DATA)/A1B_north_america.nc $(DATA)/E1_north_america.nc -o runs/demo/scenario \
		--train 1860:2020 --validate 2021:2050 --test 2051:2100
	$(BIN)/smoe report runs/demo/heat runs/demo/scenario -o runs/demo/report.html
	@echo "open runs/demo/report.html"

test: lint types layers unit

# A new environment, with the kernels built, only when what it is made from has changed.
KERNELS := $(shell find src/smoe/csrc -name '*.cpp' -o -name '*.h')
$(READY): pyproject.toml setup.py constraints.txt paper/pyproject.toml $(KERNELS)
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]" --editable paper
	touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)

types: $(READY)
	$(BIN)/basedpyright --warnings

layers: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/pytest -n 2

# While editing: lint, and the tests of the core that take a minute together.
QUICK := tests/test_reference.py tests/test_walks.py tests/rules tests/nn/test_spatial_moe_2d.py \
	tests/ops/test_routed_conv.py tests/ops/test_families.py tests/diagnostics tests/gridded/test_times.py
quick: lint
	$(BIN)/pytest -n 2 -q $(QUICK)

# The wheel and the sdist, in DIST, with everything that judges them (about two minutes). The wheel is built from the sdist
# in an environment without torch, and its kernels serve every version of Python and every Linux from glibc 2.28 on.
DIST ?= dist
PLATFORM := manylinux_2_28_$(shell uname -m)
wheel: $(READY)
	rm -rf build/wheel $(DIST)/smoe-*
	$(BIN)/python -m build --outdir build/wheel .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --plat $(PLATFORM) --only-plat --wheel-dir $(DIST) build/wheel/*.whl
	mv build/wheel/*.tar.gz $(DIST)
	$(BIN)/auditwheel show $(DIST)/*.whl
	$(BIN)/twine check --strict $(DIST)/*
	$(BIN)/check-wheel-contents $(DIST)/*.whl

# The documentation site, in build/site: tutorials are run (again only if they changed), warnings are errors, and links
# inside the site must lead somewhere. The examples of the API reference are run by the tests.
SITE := $(BIN)/python -m sphinx -W --keep-going -c docs .
docs: .venv/docs-ready
	$(BIN)/python tools/draw_performance.py
	$(BIN)/python tools/fill_numbers.py
	$(SITE) build/site

# The technical report as a PDF.
report: .venv/docs-ready
	$(BIN)/pip install --quiet pymupdf
	$(BIN)/python tools/fill_numbers.py
	$(BIN)/python tools/make_report.py build/report.pdf

# Links to other sites, which need a network.
docs-links: .venv/docs-ready
	$(SITE) -D nb_execution_mode=off -b linkcheck build/site-links

# Only the tools of the extra docs: installing smoe again would compile its kernels again.
DOCS_TOOLS := import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print(*(tool for tool in extras["docs"] if not tool.startswith("smoe")))
.venv/docs-ready: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt $$($(BIN)/python -c '$(DOCS_TOOLS)')
	touch $@

# The tables of paper/results/bench that compare layers (about 10 minutes); `smoe bench` lists all.
bench: $(READY)
	$(BIN)/smoe bench layer
	$(BIN)/smoe bench memory

# An atmosphere in WeatherBench's layout, in data/simulated: YEARS years of 2 to 5 minutes and 0.46 GB each, one thread.
# In an environment of its own (1.5 GB), because it needs JAX; a run that was stopped goes on. See paper/simulation/README.md.
YEARS ?= 8
SIMULATION := .venv-simulation
ONE_THREAD := OMP_NUM_THREADS=1 XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
simulate: $(SIMULATION)/ready
	PYTHONPATH=paper $(ONE_THREAD) $(SIMULATION)/bin/python -m simulation.simulate --years $(YEARS)
	PYTHONPATH=paper $(SIMULATION)/bin/python -m simulation.report

# An ensemble and its truth in ENS-10's layout, in data/simulated-ensemble: 105 starts a year (ENSEMBLE_EVERY=2: every second of them),
# ENSEMBLE_YEARS years of 15 to 20 minutes and 0.16 GB each, one thread; a run that was stopped goes on.
ENSEMBLE_YEARS ?= 3
ENSEMBLE_EVERY ?= 1
simulate-ensemble: $(SIMULATION)/ready
	PYTHONPATH=paper $(ONE_THREAD) $(SIMULATION)/bin/python -m simulation.simulate_ensemble --years $(ENSEMBLE_YEARS) --every $(ENSEMBLE_EVERY)
	PYTHONPATH=paper $(SIMULATION)/bin/python -m simulation.ensemble_report

$(SIMULATION)/ready: paper/simulation/requirements.txt
	$(PYTHON) -m venv $(SIMULATION)
	$(SIMULATION)/bin/pip install --quiet --requirement paper/simulation/requirements.txt
	touch $@

# Every Triton kernel compiled ahead of time, without a GPU (about five minutes), with the Triton of torch's builds for CUDA
# and with a newer one; fails where a kernel spills registers or has lost its tensor-core instructions or 16-byte copies.
# With the newer one, the tests of the kernels run in its interpreter, too.
NEWER_TRITON := 3.9.0
gpu-compile: $(READY)
	TRITON_CACHE_DIR=build/triton-cache $(BIN)/python tools/gpu_compile.py
	test -d build/triton-$(NEWER_TRITON) || $(BIN)/pip install --quiet --no-deps --target build/triton-$(NEWER_TRITON) \
		triton==$(NEWER_TRITON)
	PYTHONPATH=build/triton-$(NEWER_TRITON) TRITON_CACHE_DIR=build/triton-cache $(BIN)/python tools/gpu_compile.py
	PYTHONPATH=build/triton-$(NEWER_TRITON) $(BIN)/pytest tests/ops/triton

# Networks of other packages, converted (some minutes): in an environment that adds them to this one.
ZOO := build/zoo
zoo: $(READY)
	test -d $(ZOO) || $(PYTHON) -m venv $(ZOO)
	$(BIN)/python -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
		> $$(echo $(ZOO)/lib/python*/site-packages)/base.pth
	$(ZOO)/bin/pip install --quiet --no-deps --requirement tests/zoo/requirements.txt
	$(ZOO)/bin/python -m pytest -m slow -p no:logging tests/zoo

# The kernels' tests with builds that watch every access to memory and every undefined operation.
SANITIZED := build/sanitize
SANITIZE = g++ -O1 -g -std=c++17 -fopenmp -fPIC -shared -fsanitize=address,undefined -fno-sanitize-recover=undefined \
	-Isrc/smoe/csrc $(filter %.cpp,$(KERNELS))
$(SANITIZED)/ready: $(KERNELS)
	mkdir -p $(SANITIZED)
	$(SANITIZE) -o $(SANITIZED)/_native_portable.so
	$(SANITIZE) -mavx2 -mfma -o $(SANITIZED)/_native_avx2.so
	$(SANITIZE) -march=x86-64-v4 -o $(SANITIZED)/_native_avx512.so
	touch $@

sanitize: $(READY) $(SANITIZED)/ready
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
		SMOE_LIBRARY_DIR=$(SANITIZED) $(BIN)/pytest tests/ops/native/test_kernels.py tests/ops/native/test_plan.py \
		tests/ops/native/test_native_training.py tests/ops/test_gather_experts.py tests/ops/test_learn_factorised.py tests/ops/test_layer_call.py \
		-p no:cacheprovider

clean:
	rm -rf .venv build src/*.egg-info paper/src/*.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
