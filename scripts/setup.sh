#!/bin/sh
# Installs the Debian packages that the given lists name and dpkg-query does not know as installed. Costs milliseconds when
# nothing is missing, and needs no root then. Without apt-get it names what is missing and stops.
#
#   scripts/setup.sh packages.txt [packages-check.txt]
set -eu

if [ $# -eq 0 ]; then
  echo "usage: $0 LIST..." >&2
  exit 2
fi
wanted=$(sed 's/#.*//' "$@")

if ! command -v dpkg-query >/dev/null 2>&1; then
  missing=
  for tool in cc c++ cmake ninja pkg-config; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
  done
  if [ -n "$missing" ]; then
    echo "setup: missing:$missing" >&2
    echo "setup: this is not a Debian system; install the equivalents of these packages: $(echo $wanted)" >&2
    exit 1
  fi
  exit 0
fi

missing=
for package in $wanted; do
  state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  case $state in
    ii*) ;;
    *) missing="$missing $package" ;;
  esac
done
[ -z "$missing" ] && exit 0

echo "setup: missing packages:$missing" >&2
if ! command -v apt-get >/dev/null 2>&1; then
  echo "setup: there is no apt-get here; install them by hand" >&2
  exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "setup: neither root nor sudo; run as root: apt-get install$missing" >&2
    exit 1
  fi
  as_root=sudo
fi
# A first try without an update: package lists that are recent enough need none.
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing && exit 0
$as_root apt-get update
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
