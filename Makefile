# Verbs only; CMake owns the build. Try `make help`.
#
# Each verb installs what it needs first, if dpkg-query says that it is missing. Variables: JOBS (compile jobs), TEST_JOBS (test
# programs at once), CMAKE_ARGS (added to each configure), PREFIX (make install), MODEL and ARGS (make chat), BENCH_ARGS
# (make bench: options of the programs), FUZZ_SECONDS (make fuzz: for each program).
JOBS       ?= $(shell nproc 2>/dev/null || echo 2)
TEST_JOBS  ?= 2
CMAKE_ARGS ?=
PREFIX     ?= /usr/local
MODEL      ?= samples/nano
ARGS       ?=
BENCH_ARGS ?= --benchmark_min_time=0.05
FUZZ_SECONDS ?= 600

# The thread sanitizer of clang 16 cannot place its shadow memory where the kernel randomises mmap by more than 28 bits.
TSAN_RUN   := $(shell [ "$$(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 28)" -gt 28 ] && echo setarch -R)

CONFIGURE  = cmake $(CMAKE_ARGS) --preset
BUILD      = cmake --build -j $(JOBS) --preset
CTEST      = ctest -j $(TEST_JOBS) --preset

.NOTPARALLEL:
.DEFAULT_GOAL := all
.PHONY: deps all chat test check nightly fuzz aarch64 bench asan tsan format install clean help setup setup-check

setup:
	@scripts/setup.sh packages.txt

setup-check:
	@scripts/setup.sh packages.txt packages-check.txt

deps: setup
	@scripts/fetch_tokenizer.sh || echo "deps: went on without the V4 tokenizer; the tests that need it say so" >&2

all: setup
	@$(CONFIGURE) release >/dev/null
	@$(BUILD) release

chat: setup
	@$(CONFIGURE) release >/dev/null
	@$(BUILD) release --target dsv41-chat
	@build/bin/dsv41-chat --model $(MODEL) $(ARGS)

test: deps all
	@$(CTEST) release

# ctest's summary is the last thing printed.
nightly: deps fuzz aarch64 all
	@$(CONFIGURE) asan >/dev/null
	@$(BUILD) asan
	@$(CTEST) asan_nightly
	@$(CONFIGURE) tsan >/dev/null
	@$(BUILD) tsan_nightly
	@$(TSAN_RUN) $(CTEST) tsan_nightly
	@$(CTEST) nightly

fuzz: setup-check
	@$(CONFIGURE) fuzz >/dev/null
	@$(BUILD) fuzz
	@scripts/fuzz.sh build-fuzz $(FUZZ_SECONDS) $(JOBS)

# The system's own package lists stay as they are: the script fetches two libraries for the other architecture by itself.
aarch64: setup
	@scripts/setup.sh packages-aarch64.txt
	@scripts/aarch64_libraries.sh build-aarch64/sysroot libpcre2-dev libzstd-dev
	@$(CONFIGURE) aarch64 >/dev/null
	@$(BUILD) aarch64
	@$(CTEST) aarch64

bench: all
	@scripts/bench.py run build $(BENCH_ARGS)

asan: deps setup-check
	@$(CONFIGURE) $@ >/dev/null
	@$(BUILD) $@
	@$(CTEST) $@

tsan: deps setup-check
	@$(CONFIGURE) $@ >/dev/null
	@$(BUILD) $@
	@$(TSAN_RUN) $(CTEST) $@

# One after the other, cheapest first; ctest's summary is the last thing printed.
check: setup-check
	@scripts/sizes.sh
	@scripts/format.sh --check
	@$(MAKE) --no-print-directory all
	@scripts/abi_check.sh build
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory asan
	@$(MAKE) --no-print-directory tsan

format: setup-check
	@scripts/format.sh

install: all
	@cmake --install build --prefix $(PREFIX)

clean:
	@rm -rf build build-asan build-tsan build-fuzz build-aarch64

help:
	@echo "make          build everything into build/ (libraries in build/lib, programs in build/bin)"
	@echo "make deps     install missing Debian packages (packages.txt), fetch the V4 tokenizer for the tests"
	@echo "make chat     build, then talk with the nano model (MODEL=folder, ARGS=options of dsv41-chat)"
	@echo "make test     build, then run the tests"
	@echo "make check    what CI runs: format, ABI, tests, and the tests under each sanitizer"
	@echo "make nightly  the fuzzers, aarch64, then the slow tests and the whole sweeps of the others"
	@echo "make fuzz     each fuzzer for FUZZ_SECONDS (default 600), from the corpora in tests/fuzz"
	@echo "make aarch64  cross build for aarch64, its kernels and a short run of the nano model under qemu"
	@echo "make bench    all benchmarks and a table of ratios beside their targets (BENCH_ARGS=options of Google Benchmark)"
	@echo "make asan     tests under the address and undefined behaviour sanitizers; tsan: threads"
	@echo "make format   clang-format all sources in place"
	@echo "make install  install into PREFIX (default /usr/local)"
	@echo "make clean    remove build/ and the sanitizer builds"
