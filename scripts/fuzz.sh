#!/bin/sh
# Runs every libFuzzer program of a build folder for some time each, several at once, and fails if one of them finds
# something. Starts from the corpus that is kept (tests/fuzz/corpus/NAME); what is new goes to BUILD/corpus/NAME, which
# the next run goes on from. What was found lies in BUILD/artifacts, the programs' output in BUILD/fuzz_NAME.log.
#
#   scripts/fuzz.sh BUILD SECONDS PROGRAMS_AT_ONCE
#
# To look at a find again: BUILD/bin/fuzz_NAME BUILD/artifacts/NAME-crash-...
set -eu
cd "$(dirname "$0")/.."

if [ "${1:-}" = --one ]; then
  build=$2 seconds=$3 program=$4
  name=$(basename "$program")
  name=${name#fuzz_}
  log=$build/fuzz_$name.log
  mkdir -p "$build/artifacts" "$build/corpus/$name"
  set -- "$build/corpus/$name"
  [ -d "tests/fuzz/corpus/$name" ] && set -- "$@" "tests/fuzz/corpus/$name"
  if ! "$program" -max_total_time="$seconds" -timeout=60 -print_final_stats=1 \
    -artifact_prefix="$build/artifacts/$name-" "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    echo "fuzz: $name has found something, see $log" >&2
    exit 1
  fi
  awk -v name="$name" '/ cov: / { for (i = 1; i < NF; ++i) if ($i == "cov:") cov = $(i + 1) }
    /^stat::number_of_executed_units:/ { runs = $2 }
    END { printf "fuzz: %-12s %10d runs, %d edges covered, nothing found\n", name, runs, cov }' "$log"
  exit 0
fi

if [ $# -ne 3 ]; then
  echo "usage: $0 BUILD SECONDS PROGRAMS_AT_ONCE" >&2
  exit 2
fi
set -- "$1" "$2" "$3" "$1"/bin/fuzz_*
[ -x "$4" ] || { echo "fuzz: no programs in $1/bin" >&2; exit 1; }
build=$1 seconds=$2 at_once=$3
shift 3
printf '%s\n' "$@" | xargs -P "$at_once" -n 1 scripts/fuzz.sh --one "$build" "$seconds"
