#!/usr/bin/env python3
"""Compares two builds of the command on a GPU. The builds run in turns, and the times of each join are compared.

    scripts/gpu_in_turns.py BEFORE AFTER [--rounds 5] [-- ARGUMENTS]

Each round runs `strait bench gpu` with both binaries. The times are medians over the rounds.
ARGUMENTS go to `strait bench gpu`, `--workloads '2^27 x 2^27, 4 B'` for example. Workloads that only one of the
binaries knows are left out. A join that is more than 3 % slower makes the exit status 1.
"""

import collections
import csv
import pathlib
import statistics
import subprocess
import sys
import tempfile

from in_turns import arguments, before_dashes

SLOWER = 1.03


def medians(binary, more):
    """The median seconds of every join of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "bench", "gpu", "--out", folder, *more]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        found = {}
        for record in pathlib.Path(folder).glob("*.csv"):
            with record.open(newline="") as file:
                for row in csv.DictReader(file):
                    join = row["workload"], row["algorithm"], row["yields"]
                    found[join] = float(row["median_seconds"])
        return found


def main():
    parser, more = arguments(__doc__)
    options = parser.parse_args(before_dashes())

    times = {options.before: collections.defaultdict(list), options.after: collections.defaultdict(list)}
    for round_number in range(options.rounds):
        turn = [options.before, options.after]
        for binary in turn if round_number % 2 == 0 else reversed(turn):
            for join, seconds in medians(binary, more).items():
                times[binary][join].append(seconds)

    slower = []
    print("workload,algorithm,result,before_ms,after_ms,ratio")
    joins = [join for join in times[options.before] if join in times[options.after]]
    for join in joins:
        before, after = (1000 * statistics.median(times[b][join]) for b in (options.before, options.after))
        print(f'"{join[0]}",{join[1]},{join[2]},{before:.3f},{after:.3f},{after / before:.3f}')
        if after / before > SLOWER:
            slower.append(" ".join(join))
    if not joins:
        sys.exit("the two records have no join in common")
    if slower:
        sys.exit(f"more than 3 % slower: {'; '.join(slower)}")


if __name__ == "__main__":
    main()
