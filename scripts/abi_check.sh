#!/bin/sh
# Compares the binary interface of the built libdsv41.so with the committed baseline abi/dsv41.abi and fails on any change but
# an added function. Types are described from include/ alone; the private C++ types behind the handles are left out.
#
#   scripts/abi_check.sh [BUILD_DIR]           compare
#   scripts/abi_check.sh --update [BUILD_DIR]  write the baseline anew: review the difference before committing it
set -eu
cd "$(dirname "$0")/.."

update=false
if [ "${1:-}" = --update ]; then
  update=true
  shift
fi
library=${1:-build}/lib/libdsv41.so
baseline=abi/dsv41.abi

for tool in abidw abidiff; do
  command -v "$tool" >/dev/null 2>&1 || { echo "abi: $tool is missing (Debian package abigail-tools)" >&2; exit 1; }
done
[ -e "$library" ] || { echo "abi: $library is missing; build first" >&2; exit 1; }

# Library and baseline are described the same way, and the two descriptions compared: abidiff's own --headers-dir2 against a
# baseline file hides changes of public structs (abigail 2.2).
new=$(mktemp)
trap 'rm -f "$new"' EXIT
abidw --headers-dir include --drop-private-types --exported-interfaces-only --no-show-locs --no-corpus-path \
  --no-comp-dir-path --no-elf-needed "$library" >"$new"
sed -i "s|path='$PWD/|path='|" "$new"  # file names as from the root, wherever the checkout lies

if $update; then
  mkdir -p "$(dirname "$baseline")"
  cp "$new" "$baseline"
  echo "abi: wrote $baseline"
  exit 0
fi
[ -e "$baseline" ] || { echo "abi: there is no baseline $baseline; make one with $0 --update" >&2; exit 1; }
# The exit code decides; the text may name only the first of several changes.
if ! abidiff --no-added-syms "$baseline" "$new"; then
  echo "abi: the interface differs from $baseline" >&2
  exit 1
fi
echo "abi: no change against $baseline"
