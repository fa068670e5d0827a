#!/bin/sh
# Formats every C and C++ source of the repository in place, or with --check names those that are not formatted and fails.
# The version is pinned: other releases of clang-format break lines differently.
set -eu
cd "$(dirname "$0")/.."

tool=clang-format-14
if ! command -v "$tool" >/dev/null 2>&1; then
  echo "format: $tool is missing; make format and make check install it" >&2
  exit 1
fi
case ${1:-} in
  --check) set -- --dry-run --Werror ;;
  '') set -- -i ;;
  *) echo "usage: $0 [--check]" >&2; exit 2 ;;
esac
if git rev-parse --git-dir >/dev/null 2>&1; then
  list='git ls-files -z -- *.h *.hpp *.c *.cpp *.cu *.cuh'
else
  list='find bench bindings include kernels lib samples tests -regex .*\.\(h\|hpp\|c\|cpp\|cu\|cuh\)$ -print0'
fi
set -f
$list | xargs -0 -r "$tool" --style=file "$@"
