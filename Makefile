# Everything here sets up what it needs first: system packages, .venv, the wheel built from this tree and installed in .venv.
# Each step is done again when what it depends on has changed, and only then.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Newer than most Pythons bring, for --group (pyproject.toml's dependency groups).
PIP_VERSION := 25.3
FUZZTIME ?= 10s
# How often test-long repeats the cluster tests, with more of them at a time than is good for them.
LOOPS ?= 3
# Python's tests wait for processes most of the time: one more of them at a time than there are cores.
TEST_JOBS ?= $(shell expr $$(nproc) + 1)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

GO_SOURCES := $(sort $(shell find gocore pybind -name '*.go' ! -name '*_test.go' -o -name '*.s'))
PYTHON_SOURCES := $(sort $(shell find python/fptps -name '*.py' -o -name '*.pyi' -o -name 'py.typed'))
WHEEL_SOURCES := $(GO_SOURCES) $(PYTHON_SOURCES) go.mod go.sum setup.py pyproject.toml scripts/system_packages.py LICENSE README.md

.DELETE_ON_ERROR:
.PHONY: help setup demo osp test lint format test-go test-python test-long chaos race fuzz peers bench wheel sdist proto docs site clean system FORCE

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; do \
		printf 'make %-12s %s\n' "$$name" "$$text"; done

demo: setup ## train a small CNN with 2 workers and 1 server on this machine
	@rm -f build/demo.txt
	$(BIN)/fptps run -n 2 -s 1 -- $(BIN)/python examples/digits/train.py --verdict build/demo.txt || { cat build/demo.txt; exit 1; }
	@cat build/demo.txt

test: setup build/manylinux.stamp ## lint, Go's tests and Python's tests, side by side
	@$(MAKE) --no-print-directory -j3 --output-sync=target lint test-go test-python

lint: setup ## gofmt, go vet, staticcheck, ruff, mypy, stubtest
	@unformatted=$$(gofmt -l gocore pybind); test -z "$$unformatted" || { echo "gofmt -w $$unformatted"; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/stubtest --mypy-config-file scripts/stubtest.ini --allowlist scripts/stubtest_allowlist.txt fptps._fptps

format: $(VENV)/dev.stamp ## gofmt and ruff: put right what lint says and a tool can
	gofmt -w gocore pybind
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

test-go: system ## Go's tests
	go test ./...

test-python: setup ## Python's tests: whole clusters of processes, the wheel, the demo
	$(BIN)/pytest -n $(TEST_JOBS) --dist loadgroup --max-worker-restart=0

chaos: setup ## trainings of 1,000 events: nodes come, leave, are killed, stand still; links are cut and reset
	CHAOS_EVENTS=1000 CHAOS_SEEDS=0 $(BIN)/pytest -s tests/long/test_churn.py

test-long: setup ## race, fuzz a minute each, changes of plan, deaths, newcomers and schedulers that die, kills at random instants, a soak, MXNet, cluster tests under load
	@$(MAKE) --no-print-directory race
	go test ./gocore/kv -timeout 60m -run TestPlansChangeBetweenRounds -plays 10000
	go test ./gocore/kv -timeout 120m -run 'TestDeaths|TestWorkersDie|TestWeightsSurvive' -deaths 100000 -successions 20000
	go test ./gocore/node -timeout 60m -run TestWorkersComeAndGo -changes 20000
	go test ./gocore/cluster -timeout 60m -run TestResumeAtEveryPoint -every-point
	@$(MAKE) --no-print-directory fuzz FUZZTIME=1m
	$(BIN)/pytest tests/long
	@$(MAKE) --no-print-directory peers
	$(BIN)/pytest -m mxnet
	for loop in $$(seq $(LOOPS)); do \
		$(BIN)/pytest -q -x -n $$((4 * $$(nproc))) --dist loadgroup -m 'not wheel and not demo and not mxnet' || exit 1; done

osp: setup ## localSGD, OSP, LOSP, DQLOSP over 100 and 20 Mbit/s, an hour: MNIST=DIR CIFAR10=DIR; docs/osp.md's figures
	@test -n "$(MNIST)" || { echo "make osp MNIST=DIR: the folder of MNIST's four *-ubyte.gz files"; exit 1; }
	$(BIN)/python -m benchmarks.osp.reproduce --mnist "$(MNIST)" $(if $(CIFAR10),--cifar10 "$(CIFAR10)")

race: system ## Go's tests under the race detector
	go test -race ./...

fuzz: system ## every fuzz target for FUZZTIME (10s) each
	@set -eu; grep -rEo --include='*_test.go' '^func Fuzz\w*' gocore | sed 's/:func / /' | while read -r file target; do \
		echo "$$target ($$(dirname $$file))"; \
		go test -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME) ./$$(dirname $$file) </dev/null; done

peers: setup .venv-mxnet/fptps.stamp ## what benchmarks/ compares with: mpi4py in .venv, MXNet in .venv-mxnet
	$(BIN)/pip install -q --group peers
	@for tool in iperf3:iperf3 mpirun:openmpi-bin; do command -v $${tool%:*} >/dev/null || \
		echo "$${tool%:*} is not installed (Debian: apt-get install $${tool#*:})"; done

bench: peers ## fptps beside its peers, and on shaped links (some hours): docs/performance.md
	$(BIN)/pip install -q --group plots
	$(BIN)/python -m benchmarks.compare --seconds 1 --output build/benchmarks/compare.json
	$(BIN)/python -m benchmarks.shaped --output build/benchmarks/shaped.json
	$(BIN)/python -m benchmarks.uneven --output build/benchmarks/uneven.json
	$(BIN)/python -m benchmarks.training --output build/benchmarks/training.json
	$(BIN)/python -m benchmarks.report build/benchmarks/compare.json build/benchmarks/shaped.json build/benchmarks/uneven.json build/benchmarks/training.json --docs docs

wheel: $(VENV)/dev.stamp build/manylinux.stamp ## wheel for glibc 2.28 or newer with libzmq inside, into dist/

sdist: $(VENV)/dev.stamp ## source distribution, into dist/
	$(BIN)/python -m build --sdist --outdir dist .

proto: system ## gocore/wire/pspb/*.pb.go, by protoc and the pinned protoc-gen-go
	@command -v protoc >/dev/null || { echo "make proto needs protoc (Debian: apt-get install protobuf-compiler)"; exit 1; }
	go build -o build/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
	protoc --plugin=build/protoc-gen-go --go_out=. --go_opt=paths=source_relative gocore/wire/pspb/*.proto

docs: ## docs/configuration.md, from the table of settings in gocore/node
	go run ./gocore/node/configdoc >build/configuration.md
	mv build/configuration.md docs/configuration.md

site: $(VENV)/dev.stamp ## the documentation as a site, into build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "build/site/index.html; with its search: python3 -m http.server -d build/site"

clean: ## remove what was built; .venv stays (rm -r .venv: start anew)
	rm -rf build dist python/*.egg-info .pytest_cache .mypy_cache .ruff_cache

# Set-up

# fptps in MXNet's environment too, where `make peers` has made one.
setup: $(VENV)/fptps.stamp $(VENV)/demo.stamp $(if $(wildcard .venv-mxnet/peers.stamp),.venv-mxnet/fptps.stamp) ## all that demo and test need

system:
	@$(PYTHON) scripts/system_packages.py --install

$(VENV)/dev.stamp: pyproject.toml | system
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q pip==$(PIP_VERSION)
	$(BIN)/pip install -q --group dev --group site
	touch $@

# PyTorch: the one that $(PYTHON) has already, seen from .venv through a .pth file, or else the package index's.
$(VENV)/demo.stamp: $(VENV)/dev.stamp
	site=$$($(PYTHON) -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])' 2>/dev/null); \
	if [ -n "$$site" ]; then echo "$$site" >$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth; \
	else echo 'installing PyTorch (a few GB)'; $(BIN)/pip install -q torch; fi
	$(BIN)/pip install -q --group demo
	touch $@

.venv-mxnet/peers.stamp: benchmarks/peers/mxnet_env.py
	$(PYTHON) -m benchmarks.peers.mxnet_env
	touch $@

# The same wheel, which is for every CPython.
.venv-mxnet/fptps.stamp: .venv-mxnet/peers.stamp build/wheel.stamp
	.venv-mxnet/bin/pip install -q "$$(echo build/wheel/*.whl)[mxnet,bench]"
	.venv-mxnet/bin/pip install -q --force-reinstall --no-deps build/wheel/*.whl
	touch $@

# A file that is gone is a change too, which make does not see by itself.
build/sources.txt: FORCE
	@mkdir -p build
	@echo '$(WHEEL_SOURCES)' | cmp -s - $@ || echo '$(WHEEL_SOURCES)' >$@

build/wheel.stamp: $(VENV)/dev.stamp build/sources.txt $(WHEEL_SOURCES)
	rm -rf build/lib* build/bdist* build/wheel
	$(BIN)/pip wheel -q --no-deps --wheel-dir build/wheel .
	touch $@

$(VENV)/fptps.stamp: build/wheel.stamp
	$(BIN)/pip install -q "$$(echo build/wheel/*.whl)[bench,checkpoint,testing]"
	$(BIN)/pip install -q --force-reinstall --no-deps build/wheel/*.whl
	touch $@

# After build/wheel.stamp, as both builds write build/lib*.
build/manylinux.stamp: build/wheel.stamp scripts/manylinux.py
	$(BIN)/pip install -q --only-binary :all: --group manylinux
	rm -rf build/lib* build/bdist* dist/*.whl
	$(BIN)/python scripts/manylinux.py dist
	touch $@
