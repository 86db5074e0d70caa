# Two commands: `make demo` trains the SMoE on heat diffusion and draws what it learned; `make test` runs every check.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test lint types layers unit headline bench clean

demo: $(READY)
	$(BIN)/smoe train heat/smoe --seed 0 --output-dir runs/demo --resume
	$(BIN)/smoe show runs/demo

test: lint types layers unit

# A new environment only when what it is made from has changed.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(READY)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/basedpyright --warnings

layers: $(READY)
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/pytest -n 2

# The five seeds of the headline (about 15 minutes on two cores); stored in results/heat.
headline: $(READY)
	$(BIN)/python benchmarks/heat_headline.py

# A training step of heat/smoe beside a plain convolution's, on one thread; stored in benchmarks/results.
bench: $(READY)
	$(BIN)/python benchmarks/heat_step.py

clean:
	rm -rf .venv build src/*.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
