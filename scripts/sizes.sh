#!/bin/sh
# Prints how large the sources are, for the reader of a CI log to see a file that has grown a second idea. Judges nothing.
set -eu
cd "$(dirname "$0")/.."

find lib kernels include samples tests bench -name golden -prune -o \
  \( -name '*.h' -o -name '*.hpp' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' \) -print | sort | xargs wc -l |
  awk '$2 != "total" { n++; lines += $1; size[$2] = $1; if ($1 > 400) over400++; if ($1 > 800) over800++ }
       END { printf "sizes: %d files, %d lines; %d over 400 lines, %d over 800\n", n, lines, over400, over800
             for (name in size) if (size[name] > 400) printf "sizes: %5d %s\n", size[name], name | "sort -rn -k2" }'
