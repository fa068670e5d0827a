#!/bin/sh
# Installs into a scratch prefix, moves it, and builds and runs a C host from the moved tree: by find_package and by pkg-config,
# shared and static each. What breaks here breaks for every packager.
#
#   install_consume.sh BUILD_DIR SCRATCH_DIR
set -eu
build=$1
scratch=$2
here=$(cd "$(dirname "$0")" && pwd)/install_consume

rm -rf "$scratch"
mkdir -p "$scratch"
cmake --install "$build" --prefix "$scratch/first" >/dev/null
mv "$scratch/first" "$scratch/moved"
prefix=$scratch/moved

echo "by find_package"
cmake -S "$here" -B "$scratch/cmake" -G Ninja -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
cmake --build "$scratch/cmake"
"$scratch/cmake/consume_shared"
"$scratch/cmake/consume_static"

echo "by pkg-config"
pc=$(find "$prefix" -name dsv41.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir dsv41)
cc -std=c99 -pedantic-errors -Wall -Wextra -Werror "$here/consume.c" $(pkg-config --cflags --libs dsv41) -o "$scratch/shared"
LD_LIBRARY_PATH=$libdir "$scratch/shared"
mkdir "$scratch/archive"
cp "$libdir/libdsv41.a" "$scratch/archive"
cc "$here/consume.c" $(pkg-config --cflags dsv41) -L"$scratch/archive" $(pkg-config --static --libs-only-l dsv41) -o "$scratch/static"
"$scratch/static"

if grep -rIl "$scratch\|$build" "$prefix"; then
  echo "the files above name the place where they were built or installed first" >&2
  exit 1
fi
rm -rf "$scratch"
