#!/bin/sh
# Fetches the static libraries that libdsv41 links, as Debian has them for arm64, and unpacks them into a folder. Leaves the
# system as it is: apt keeps its lists of arm64 packages in that folder too, so no architecture is added to dpkg.
#
#   scripts/aarch64_libraries.sh FOLDER PACKAGE...    FOLDER/usr/lib/aarch64-linux-gnu/*.a
set -eu

if [ $# -lt 2 ]; then
  echo "usage: $0 FOLDER PACKAGE..." >&2
  exit 2
fi
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
[ "$(cat "$folder/packages" 2>/dev/null)" = "$*" ] && exit 0

mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial"
arm64_apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Acquire::Languages=none \
    -o APT::Sandbox::User="$(id -un)" -o APT::Update::Post-Invoke-Success= \
    -o Dir::State::Lists="$folder/apt/lists" -o Dir::Cache="$folder/apt/cache" "$@"
}
echo "aarch64: fetching $*" >&2
arm64_apt update
cd "$folder/apt"
rm -f ./*.deb
arm64_apt download "$@"
for package in ./*.deb; do dpkg-deb -x "$package" "$folder"; done
cd /
rm -rf "$folder/apt"
echo "$*" >"$folder/packages"
