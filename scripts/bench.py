#!/usr/bin/env python3
"""Runs the benchmarks, or prints their results beside bench/targets.tsv.

  scripts/bench.py run BUILD [OPTION...]   runs BUILD/bin/bench_* with these options of Google Benchmark, writes
                                           BUILD/bench/PROGRAM.json, then prints the table
  scripts/bench.py table BUILD             the table of what was run last
  scripts/bench.py check BUILD             fails where the table of targets names a benchmark that no program has, or one twice
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MARGIN = 0.15  # a line that misses its target by more is marked


def plain(name):
    """The name without what Google Benchmark adds for its own settings."""
    return re.sub(r"/(iterations:\d+|repeats:\d+|min_time:[\d.]+|manual_time|real_time|process_time)", "", name)


def number(text):
    dividend, _, divisor = text.partition("/")
    return float(dividend) / float(divisor or 1)


def targets():
    rows = []
    for line in (ROOT / "bench/targets.tsv").read_text().splitlines():
        if line and not line.startswith("#"):
            name, counter, sign, target = line.split("\t")[:4]
            rows.append((name, counter, sign, target))
    return rows


def programs(build):
    return sorted(p for p in (build / "bin").glob("bench_*") if p.is_file())


def check(build):
    names = set()
    for program in programs(build):
        listed = subprocess.run([program, "--benchmark_list_tests=true"], check=True, capture_output=True, text=True).stdout
        names.update(plain(name) for name in listed.splitlines())
    named = [(name, counter) for name, counter, *_ in targets()]
    absent = sorted({name for name, _ in named} - names)
    twice = sorted({row for row in named if named.count(row) > 1})
    for name in absent:
        print(f"bench/targets.tsv names {name}, which no program has", file=sys.stderr)
    for name, counter in twice:
        print(f"bench/targets.tsv has two rows of {name}, {counter}", file=sys.stderr)
    return 1 if absent or twice else 0


def results(build):
    """Counters of each line that was run; "error" is why it was not."""
    lines = {}
    for path in sorted((build / "bench").glob("*.json")):
        for line in json.loads(path.read_text() or "{}").get("benchmarks", []):
            if line.get("run_type", "iteration") == "iteration":
                lines[plain(line["name"])] = line
    return lines


def row(name, counter, sign, target, line):
    title = name if counter == "ratio" else f"{name}, {counter}"
    if line is None:
        return title, "", "", f"{sign} {target}", "not run"
    if line.get("error_occurred"):
        return title, "", "", f"{sign} {target}", line.get("error_message", "failed")
    best, median = line.get(counter), line.get(counter + "_median")
    if best is None:
        return title, "", "", f"{sign} {target}", "no such counter"
    goal = number(target)
    missed = best < goal * (1 - MARGIN) if sign == ">=" else best > goal * (1 + MARGIN)
    return title, f"{best:.3g}", "" if median is None else f"{median:.3g}", f"{sign} {target}", "MISSED" if missed else ""


def table(build):
    lines = results(build)
    rows = [("line", "best", "median", "target", "")]
    rows += [row(*target, lines.get(target[0])) for target in targets()]
    widths = [max(len(r[i]) for r in rows) for i in range(4)]
    for r in rows:
        print(f"{r[0]:{widths[0]}}  {r[1]:>{widths[1]}}  {r[2]:>{widths[2]}}  {r[3]:{widths[3]}}  {r[4]}".rstrip())
    wrong = False
    for name, counter, _, target in targets():
        said = lines.get(name, {}).get("target")
        if counter == "ratio" and said is not None and abs(said - number(target)) > 0.005:
            print(f"{name} says that its target is {said:g}, bench/targets.tsv {target}", file=sys.stderr)
            wrong = True
    return 1 if wrong or any(r[4] == "no such counter" for r in rows) else 0


def run(build, options):
    if check(build):
        return 1
    (build / "bench").mkdir(exist_ok=True)
    for program in programs(build):
        out = build / "bench" / (program.name.removeprefix("bench_") + ".json")
        print(f"== {program}", flush=True)
        subprocess.run([program, *options, f"--benchmark_out={out}", "--benchmark_out_format=json"], check=True)
    print(f"\nThe lines that have a target, of {build}/bench/*.json:\n")
    return table(build)


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in ("run", "table", "check"):
        sys.exit(__doc__)
    build = pathlib.Path(sys.argv[2])
    if sys.argv[1] == "run":
        return run(build, sys.argv[3:])
    return {"table": table, "check": check}[sys.argv[1]](build)


if __name__ == "__main__":
    sys.exit(main())
