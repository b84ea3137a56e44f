#!/usr/bin/env python3
"""Compares two builds of the command, workload by workload, in turns.

    scripts/in_turns.py BEFORE AFTER [--rounds 5] [--joins 9] [--only W2s,W8] [--modes aggregate]
        [-- ARGUMENTS]

Each round runs every workload of the README's CPU tables with either binary, one after the other, so that a
machine whose speed changes from minute to minute changes it for both. One such run is the median of nine
joins, or of as many as `--joins` says: joins of 0.1 s need some forty for a steady median. The times are
medians over the rounds. ARGUMENTS go to `strait bench join`, `--threads 16` for example.
A workload that is more than 5 % slower makes the exit status 1.

`--only G1,G2 --modes materialise -- --device gpu` compares the rows of the README's table of Arrow tables on a GPU.
"""

import argparse
import json
import statistics
import subprocess
import sys

WORKLOADS = {
    "W1": "--build 2^22 --probe 2^22 --keys dense",
    "W2": "--build 2^24 --probe 2^24 --keys dense",
    "W2s": "--build 2^24 --probe 2^24 --keys sparse",
    "W3": "--build 2^24 --probe 2^26 --keys dense",
    "W4": "--build 2^25 --probe 2^25 --keys dense --key-type int32 --payload-bytes 4",
    "W5": "--build 2^16 --probe 2^26 --keys dense",
    "W5s": "--build 2^16 --probe 2^26 --keys sparse",
    "W6": "--build 2^22 --probe 2^24 --keys dense --skew zipf:1.0",
    "W7": "--build 2^22 --probe 2^22 --keys dense --duplicates 4",
    "W8": "--build 2^20 --probe 2^22 --key-type string",
}
# Arrow tables on a GPU. They run only if `--only` names them.
GPU_WORKLOADS = {
    "G1": "--build 2^26 --probe 2^28",
    "G2": "--build 2^24 --probe 2^28",
}
MODES = ["aggregate", "materialise"]
SLOWER = 1.05


def seconds(binary, workload, mode, joins, more):
    shape = (WORKLOADS | GPU_WORKLOADS)[workload]
    command = [binary, "bench", "join", *shape.split(), "--mode", mode]
    command += ["--repeat", str(joins), "--format", "json", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)["seconds"]["median"]


def before_dashes():
    """The arguments before `--`."""
    return sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]


def arguments(about):
    """A parser for two binaries and a number of rounds, and the arguments after `--`. gpu_in_turns.py uses it, too."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rounds", type=int, default=5)
    return parser, sys.argv[len(before_dashes()) + 2 :]


def main():
    parser, more = arguments(__doc__)
    parser.add_argument("--joins", type=int, default=9)
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--modes", default=",".join(MODES))
    options = parser.parse_args(before_dashes())

    slower = []
    print("workload,mode,before_s,after_s,ratio", flush=True)
    for workload in options.only.split(","):
        for mode in options.modes.split(","):
            times = {options.before: [], options.after: []}
            for round_number in range(options.rounds):
                turn = [options.before, options.after]
                for binary in turn if round_number % 2 == 0 else reversed(turn):
                    times[binary].append(seconds(binary, workload, mode, options.joins, more))
            before, after = (statistics.median(times[b]) for b in (options.before, options.after))
            print(f"{workload},{mode},{before:.4f},{after:.4f},{after / before:.3f}", flush=True)
            if after / before > SLOWER:
                slower.append(f"{workload} {mode}")
    if slower:
        sys.exit(f"more than 5 % slower: {', '.join(slower)}")


if __name__ == "__main__":
    main()
