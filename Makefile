# make demo, make test: each sets up what it needs on the first call and starts at once on the next.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # tests start hundreds of processes, which would each compile all they import

.PHONY: demo serve-demo test lint types unit system soak bench docs site clean

demo: .venv/ready
	$(BIN)/onepass compare finetune er er-fsl --stream digits --memory 100 --runs 5 --out onepass-runs/demo

serve-demo: .venv/ready-serve # a page at which digits arrive; Ctrl-C ends it
	$(BIN)/python tools/serve_demo.py

test: lint types unit system

lint: .venv/ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/ready-test
	$(BIN)/mypy

unit: .venv/ready-test
	$(BIN)/pytest -n 2 --dist worksteal -m 'not system'

system: .venv/ready-browser # more of them than cores: they mostly wait for processes
	$(BIN)/pytest -n 4 --dist loadgroup -m system

MINUTES ?= 60
soak: .venv/ready-test # every fault, mutated files, a served learner and kills, for MINUTES each
	$(BIN)/python tests/faults.py build/soak --minutes $(MINUTES)
	$(BIN)/python tests/soak_serving.py build/soak-serving --minutes $(MINUTES)
	$(BIN)/python tests/fuzz.py --seconds $$(($(MINUTES) * 60)) --keep build/soak/found
	$(BIN)/pytest -m system -k 'kill' tests

bench: .venv/ready
	$(BIN)/python benchmarks/step.py

docs: .venv/ready
	$(BIN)/python tools/docs.py

site: .venv/ready-docs # the documents as a site: open build/site/index.html
	rm -rf build/site
	$(BIN)/python -m sphinx -q -W --keep-going -E -d build/doctrees -c docs . build/site

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo 'onepass needs Python 3.10 or newer: make PYTHON=python3.11 demo'; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

.venv/ready-serve: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve]'
	@touch $@

.venv/ready-docs: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

.venv/ready-test: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	@touch $@

.venv/ready-browser: .venv/ready-test tests/browser.py
	$(BIN)/python tests/browser.py
	@touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
