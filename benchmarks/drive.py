"""Measures one engine in one process: loads the tables, then times joins, and checks nothing
itself: it prints what every run answered, and `strait bench compare` compares that.

    drive.py ENGINE.py VARIANT MODE FOLDER REPEAT THREADS

An engine is a file with VERSION and prepare(build, probe, threads, variant), which returns an object
with three methods: aggregate() answers (rows, [sums]); materialise() returns rows that lie in memory,
which summed(result) counts and sums when the clock has stopped.
"""

import gc
import importlib.util
import json
import os
import sys
import time


def resident(name):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def load(path):
    """A table in memory: read, not mapped."""
    import pyarrow as pa

    with pa.OSFile(path, "rb") as file:
        return pa.ipc.open_file(file).read_all()


def main():
    path, variant, mode, folder, repeat, threads = sys.argv[1:7]
    # Polars and Arrow read these variables when they are imported.
    os.environ["POLARS_MAX_THREADS"] = threads
    os.environ["OMP_NUM_THREADS"] = threads
    import pyarrow as pa

    pa.set_cpu_count(int(threads))
    # Loads the engine by its path, because the file has the same name as the package that it imports.
    spec = importlib.util.spec_from_file_location("engine", path)
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)

    build = load(os.path.join(folder, "build.arrow"))
    probe = load(os.path.join(folder, "probe.arrow"))
    ready = engine.prepare(build, probe, int(threads), variant)
    del build, probe
    gc.collect()
    loaded = resident("VmRSS")

    seconds, answers = [], []
    for run in range(int(repeat) + 1):
        started = time.perf_counter()
        result = ready.aggregate() if mode == "aggregate" else ready.materialise()
        elapsed = time.perf_counter() - started
        # Measured before the check, whose memory does not belong to the engine.
        peak = resident("VmHWM")
        rows, sums = result if mode == "aggregate" else ready.summed(result)
        answers.append({"rows": int(rows), "sums": [int(s) for s in sums]})
        del result
        gc.collect()
        if run > 0:
            seconds.append(elapsed)
    figures = {
        "version": engine.VERSION,
        "seconds": seconds,
        "answers": answers,
        "resident": {"loaded": loaded, "peak": peak},
    }
    print(json.dumps(figures))


main()
