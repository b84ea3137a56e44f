"""Runs one engine in one process. It checks nothing itself: it prints what the engine answered, and the command
that started it compares that.

    drive.py ENGINE.py VARIANT aggregate|materialise FOLDER REPEAT THREADS
    drive.py ENGINE.py VARIANT job JOB.json OUT THREADS
    drive.py ENGINE.py VARIANT read FILE

`aggregate` and `materialise` are for `strait bench compare`: they load the tables of a folder, and then time
joins of them. The engine has prepare(build, probe, threads, variant), which returns an object with three methods:
aggregate() answers (rows, [sums]); materialise() returns rows that lie in memory, which summed(result) counts and
sums when the clock has stopped.

`job` is for `strait bench jobs`: it times one whole job, from files to a file. The engine has
job(spec, out, variant, threads), which writes OUT, or returns the number of rows if the job only counts. It may
have job_imports(spec), which imports what only some jobs need. The clock starts when all is imported.

`read` reads a Parquet file with the engine's batches(path), and writes the rows to stdout as an Arrow IPC stream.

Every engine has VERSION.
"""

import gc
import importlib.util
import json
import os
import resource
import sys
import time


def resident(name):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return 0


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def load_engine(path, threads):
    # Polars, DataFusion (Tokio) and Arrow read these variables when they are imported.
    for name in ["POLARS_MAX_THREADS", "TOKIO_WORKER_THREADS", "OMP_NUM_THREADS"]:
        os.environ[name] = threads
    # Loads the engine by its path, because the file has the same name as the package that it imports.
    spec = importlib.util.spec_from_file_location("engine", path)
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    return engine


def load(path):
    """A table in memory: read, not mapped."""
    import pyarrow as pa

    with pa.OSFile(path, "rb") as file:
        return pa.ipc.open_file(file).read_all()


def compare(path, variant, mode, folder, repeat, threads):
    engine = load_engine(path, threads)
    import pyarrow as pa

    pa.set_cpu_count(int(threads))
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


def job(path, variant, description, out, threads):
    engine = load_engine(path, threads)
    with open(description) as file:
        spec = json.load(file)
    if hasattr(engine, "job_imports"):
        engine.job_imports(spec)
    # The modules that have PyArrow already. The others do not need it.
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].set_cpu_count(int(threads))
    cpu, started = cpu_seconds(), time.perf_counter()
    count = engine.job(spec, out, variant, int(threads))
    figures = {
        "version": engine.VERSION,
        "seconds": time.perf_counter() - started,
        "cpu_seconds": cpu_seconds() - cpu,
        "count": count,
    }
    print(json.dumps(figures))


def read(path, variant, file):
    engine = load_engine(path, str(os.cpu_count()))
    import pyarrow as pa

    schema, batches = engine.batches(file)
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as stream:
        for batch in batches:
            stream.write(batch)


def main():
    path, variant, mode, *rest = sys.argv[1:]
    if mode == "job":
        job(path, variant, *rest)
    elif mode == "read":
        read(path, variant, *rest)
    else:
        compare(path, variant, mode, *rest)


main()
