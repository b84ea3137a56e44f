#!/usr/bin/env python3
"""Compares two builds of the command on a GPU. The builds run in turns, and the times of each join are compared.

    scripts/gpu_in_turns.py BEFORE AFTER [--suite gpu] [--rounds 5] [-- ARGUMENTS]

Each round runs `strait bench gpu` with both binaries, or `strait bench beyond` with `--suite beyond`. The times are
medians over the rounds. ARGUMENTS go to the command, `--workloads '2^27 x 2^27, 4 B'` for example. Workloads that only
one of the binaries knows are left out. A join that is more than 3 % slower makes the exit status 1.
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


def medians(binary, suite, more):
    """The median seconds of every join of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [binary, "bench", suite, "--out", folder, *more]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
        found = {}
        for record in pathlib.Path(folder).glob("*.csv"):
            with record.open(newline="") as file:
                for row in csv.DictReader(file):
                    # `bench beyond` records joins that failed without a time.
                    if not row["median_seconds"]:
                        continue
                    join = row["workload"], row["algorithm"], row["yields"]
                    found[join] = float(row["median_seconds"])
        return found


def main():
    parser, more = arguments(__doc__)
    parser.add_argument("--suite", choices=["gpu", "beyond"], default="gpu")
    options = parser.parse_args(before_dashes())

    times = {options.before: collections.defaultdict(list), options.after: collections.defaultdict(list)}
    slower = []
    for round_number in range(options.rounds):
        turn = [options.before, options.after]
        for binary in turn if round_number % 2 == 0 else reversed(turn):
            for join, seconds in medians(binary, options.suite, more).items():
                times[binary][join].append(seconds)
        # The medians so far, so that an interrupted run has shown something.
        print(f"rounds: {round_number + 1} of {options.rounds}")
        slower = compared(times[options.before], times[options.after])
    if slower:
        sys.exit(f"more than 3 % slower: {'; '.join(slower)}")


def compared(before, after):
    """Prints the medians of all joins, and returns the joins that became slower."""
    joins = [join for join in before if join in after]
    if not joins:
        sys.exit("the two records have no join in common")
    print("workload,algorithm,result,before_ms,after_ms,ratio")
    slower = []
    for join in joins:
        old, new = (1000 * statistics.median(times[join]) for times in (before, after))
        print(f'"{join[0]}",{join[1]},{join[2]},{old:.3f},{new:.3f},{new / old:.3f}', flush=True)
        if new / old > SLOWER:
            slower.append(" ".join(join))
    return slower


if __name__ == "__main__":
    main()
