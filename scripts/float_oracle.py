#!/usr/bin/env python3
"""Joins random tables with float keys with `strait` and with DuckDB, and compares the rows.

The runner's oracle is our own code. This script asks an engine that is not. Checked before it was
written, on DuckDB 2.0.0 and Polars 2.1.0: in the equality of an inner join, both join 0.0 with -0.0,
and NaN with NaN whatever its sign and payload bits. DuckDB does so in structs and lists, too. That
is what `strait` does by default (`--float-equality numeric`).

Each case draws one or two key columns (Float32, Float64, and integers that meet a float), tables in
Parquet or Arrow files, a join type, and whether nulls are equal. It then runs every algorithm, and
checks three things:

- the rows are those of DuckDB, as a multiset;
- a merged key column has the left row's value bit by bit (the right row's in right joins);
- the output of sort-merge is sorted by key: NaN after infinity, nulls last.

The first run installs DuckDB and PyArrow with pip into the user's cache folder. A failing case keeps
its tables and prints the command that repeats it.
"""

import argparse
import collections
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import venv

PACKAGES = ["duckdb==2.0.*", "pyarrow==26.*"]
ALGORITHMS = ["auto", "no-partition", "radix", "sort-merge"]
# DuckDB's syntax for each join type: first those that return both sides, then those that return one.
TWO_SIDED = {"inner": "JOIN", "left": "LEFT JOIN", "right": "RIGHT JOIN", "full": "FULL JOIN"}
ONE_SIDED = ["left-semi", "left-anti", "left-mark", "right-semi", "right-anti", "right-mark"]

FLOATS = {"f32": ("<f", "<I", 4), "f64": ("<d", "<Q", 8)}
INTEGERS = {"i16": ("<h", 2), "i32": ("<i", 4)}
# Integers are paired only with floats that hold all their values, because DuckDB compares as floats.
KINDS = [("f32", "f32"), ("f64", "f64"), ("f32", "f64"), ("f64", "f32"), ("i16", "f32"), ("f64", "i32")]
SPECIAL = {
    # Zeros, infinities and the smallest subnormal numbers, of both signs. NaNs of both signs: the usual one,
    # one with a payload, and a signalling one.
    "f32": [0, 0x80000000, 0x7F800000, 0xFF800000, 1, 0x80000001]
    + [0x7FC00000, 0xFFC00000, 0x7FC00123, 0xFFC00001, 0x7F800001, 0xFF800001],
    "f64": [0, 1 << 63, 0x7FF << 52, 0xFFF << 52, 1, 1 << 63 | 1]
    + [0x7FF8 << 48, 0xFFF8 << 48, 0x7FF8 << 48 | 0x123, 0xFFF8 << 48 | 1, 0x7FF0 << 48 | 1, 0xFFF0 << 48 | 1],
}


def in_environment():
    """Runs this script again under a Python that has the packages, unless it is that one."""
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "strait")
    place = os.path.join(cache, "float-oracle-" + "-".join(p.replace("==", "") for p in PACKAGES).replace("*", "x"))
    python = os.path.join(place, "bin", "python")
    if os.environ.get("STRAIT_FLOAT_ORACLE") == place:
        return
    if not os.path.exists(python):
        print(f"installing {' and '.join(PACKAGES)} into {place}, once", file=sys.stderr)
        os.makedirs(cache, exist_ok=True)
        # The folder gets its final name only when it is complete. Another process may have been faster.
        aside = tempfile.mkdtemp(prefix=".float-oracle-", dir=cache)
        try:
            venv.create(aside, with_pip=True)
            pip = [os.path.join(aside, "bin", "python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, "--disable-pip-version-check", *PACKAGES], check=True)
            if not os.path.exists(python):
                os.rename(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    os.environ["STRAIT_FLOAT_ORACLE"] = place
    os.execv(python, [python, os.path.abspath(__file__), *sys.argv[1:]])


def draw(rng, kind):
    """The bytes of a random value."""
    if kind in INTEGERS:
        return struct.pack(INTEGERS[kind][0], rng.randrange(-2, 4))
    as_float, as_bits, _ = FLOATS[kind]
    if rng.random() < 0.6:
        return struct.pack(as_bits, rng.choice(SPECIAL[kind]))
    return struct.pack(as_float, rng.choice([-2.0, -1.5, 0.1, 0.5, 1.0, 1.5, 3.0]))


def number(kind, cell):
    """A cell as a Python number; None for null."""
    if cell is None:
        return None
    return struct.unpack((FLOATS.get(kind) or INTEGERS[kind])[0], cell)[0]


class Side:
    """One table: its name, the kinds and cells of its key columns, and its rows' numbers."""

    def __init__(self, rng, name, kinds, number_column):
        self.name, self.kinds, self.number_column = name, kinds, number_column
        self.rows = rng.choice([0, 1, 5, 12, 40])
        nulls = rng.choice([0.0, 0.1, 0.3])
        self.cells = [
            [None if rng.random() < nulls else draw(rng, kind) for _ in range(self.rows)] for kind in kinds
        ]
        self.format = rng.choice(["parquet", "arrow"])

    def table(self, rng):
        import pyarrow as pa

        types = {"f32": pa.float32(), "f64": pa.float64(), "i16": pa.int16(), "i32": pa.int32()}
        columns = {}
        for i, (kind, cells) in enumerate(zip(self.kinds, self.cells)):
            # Made from buffers, so that no bit of a NaN is lost. There is a value under each null.
            data = b"".join(draw(rng, kind) if cell is None else cell for cell in cells)
            bits = bytearray((self.rows + 7) // 8)
            for row, cell in enumerate(cells):
                bits[row // 8] |= (cell is not None) << (row % 8)
            buffers = [pa.py_buffer(bytes(bits)), pa.py_buffer(data)]
            columns[f"k{i}"] = pa.Array.from_buffers(types[kind], self.rows, buffers)
        columns[self.number_column] = pa.array(range(self.rows), pa.int64())
        return pa.table(columns)

    def write(self, folder, table):
        import pyarrow.feather
        import pyarrow.parquet

        path = os.path.join(folder, f"{self.name}.{self.format}")
        if self.format == "parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=7)
        else:
            pyarrow.feather.write_feather(table, path, compression="uncompressed", chunksize=5)
        return path


class Case:
    """Everything a case is made of, from a seed and its number."""

    def __init__(self, seed, which):
        rng = random.Random(f"{seed}/{which}")
        kinds = [rng.choice(KINDS) for _ in range(rng.choice([1, 1, 2]))]
        self.join_type = rng.choice(list(TWO_SIDED) * 2 + ONE_SIDED)
        self.nulls_equal = rng.random() < 0.3
        self.left = Side(rng, "left", [left for left, _ in kinds], "l")
        self.right = Side(rng, "right", [right for _, right in kinds], "r")
        self.tables = self.left.table(rng), self.right.table(rng)

    def expected(self):
        """The rows of DuckDB: numbers of a left and a right row, and a mark, as far as there are."""
        import duckdb

        connection = duckdb.connect()
        connection.register("a", self.tables[0])
        connection.register("b", self.tables[1])
        equal = "IS NOT DISTINCT FROM" if self.nulls_equal else "="
        on = " AND ".join(f"a.k{i} {equal} b.k{i}" for i in range(len(self.left.kinds)))
        if self.join_type in TWO_SIDED:
            sql = f"SELECT a.l, b.r FROM a {TWO_SIDED[self.join_type]} b ON {on}"
        else:
            side, what = self.join_type.split("-")
            one, other, shown = ("a", "b", "a.l") if side == "left" else ("b", "a", "b.r")
            exists = f"EXISTS (SELECT 1 FROM {other} WHERE {on})"
            sql = {
                "semi": f"SELECT {shown} FROM {one} WHERE {exists}",
                "anti": f"SELECT {shown} FROM {one} WHERE NOT {exists}",
                "mark": f"SELECT {shown}, {exists} FROM {one}",
            }[what]
        return connection.execute(sql).fetchall()

    def actual(self, strait, algorithm, folder, paths):
        """The output of `strait` as a table."""
        import pyarrow.feather

        out = os.path.join(folder, f"{algorithm}.arrow")
        on = ",".join(f"k{i}" for i in range(len(self.left.kinds)))
        command = [strait, "join", *paths, "--on", on, "--type", self.join_type, "--device", "cpu"]
        command += ["--algorithm", algorithm, "-o", out] + ["--nulls-equal"] * self.nulls_equal
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            raise Wrong(f"the command failed: {' '.join(command)}\n{run.stderr}")
        return pyarrow.feather.read_table(out)

    def check(self, strait, folder):
        """Runs all algorithms; how many pairs had keys whose bits differ."""
        paths = [side.write(folder, table) for side, table in zip((self.left, self.right), self.tables)]
        expected = self.expected()
        for algorithm in ALGORITHMS:
            output = self.actual(strait, algorithm, folder, paths)
            names = [name for name in ("l", "r", "mark") if name in output.column_names]
            rows = list(zip(*(output.column(name).to_pylist() for name in names)))
            missing = collections.Counter(expected) - collections.Counter(rows)
            extra = collections.Counter(rows) - collections.Counter(expected)
            if missing or extra:
                raise Wrong(f"{algorithm}: missing {dict(missing)}, too much {dict(extra)}")
            self.check_keys(algorithm, output)
            if algorithm == "sort-merge":
                self.check_order(output)
        if self.join_type not in TWO_SIDED:
            return 0
        both = [(l, r) for l, r in expected if l is not None and r is not None]
        keys = zip(self.left.kinds, self.right.kinds, self.left.cells, self.right.cells)
        same = [(ours, theirs) for left, right, ours, theirs in keys if left == right]
        return sum(any(ours[l] != theirs[r] for ours, theirs in same) for l, r in both)

    def shown(self, output):
        """Which table and row the merged key columns of each output row come from."""
        none = [None] * output.num_rows
        lefts = output.column("l").to_pylist() if "l" in output.column_names else none
        rights = output.column("r").to_pylist() if "r" in output.column_names else none
        right_first = self.join_type.startswith("right")
        for l, r in zip(lefts, rights):
            if l is None or (right_first and r is not None):
                yield self.right, r
            else:
                yield self.left, l

    def check_keys(self, algorithm, output):
        for i, (left, right) in enumerate(zip(self.left.kinds, self.right.kinds)):
            if left != right and self.join_type == "full":
                continue  # Both columns stay, or values are cast.
            cells = cells_of(output.column(f"k{i}"))
            for row, (side, at) in enumerate(self.shown(output)):
                if cells[row] != side.cells[i][at]:
                    was, found = side.cells[i][at], cells[row]
                    raise Wrong(f"{algorithm}: k{i} of output row {row} is {found}, not {was} of {side.name}")

    def check_order(self, output):
        def place(value):
            if value is None:
                return 2, 0.0
            return (1, 0.0) if value != value else (0, float(value))

        keys = []
        for side, at in self.shown(output):
            key = [number(kind, cells[at]) for kind, cells in zip(side.kinds, side.cells)]
            idle = not self.nulls_equal and None in key
            # Rows that cannot match come last, in any order.
            keys.append((idle, [] if idle else [place(value) for value in key]))
        for row, (before, after) in enumerate(zip(keys, keys[1:])):
            if before > after:
                raise Wrong(f"sort-merge: output row {row + 1} with {after} comes after {before}")


def cells_of(column):
    """The bytes of each cell; None for null."""
    cells = []
    for chunk in column.chunks:
        width = chunk.type.bit_width // 8
        data = chunk.buffers()[1]
        for i in range(len(chunk)):
            at = (chunk.offset + i) * width
            cells.append(data[at : at + width].to_pybytes() if chunk[i].is_valid else None)
    return cells


class Wrong(Exception):
    """A case whose outcome is not what it should be."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--strait", default="target/release/strait", help="the command [%(default)s]")
    parser.add_argument("--cases", type=int, default=400, help="how many cases [%(default)s]")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("STRAIT_SEED", "1")))
    parser.add_argument("--case", type=int, help="one case alone")
    arguments = parser.parse_args()
    if not os.path.exists(arguments.strait):
        sys.exit(f"{arguments.strait} is not there; build it with cargo build --release -p strait-cli")
    in_environment()
    seed, differing = arguments.seed, 0
    cases = range(arguments.cases) if arguments.case is None else [arguments.case]
    for which in cases:
        case = Case(seed, which)
        folder = tempfile.mkdtemp(prefix="strait-floats-")
        try:
            differing += case.check(os.path.abspath(arguments.strait), folder)
        except Wrong as wrong:
            nulls = ", nulls equal" if case.nulls_equal else ""
            repeat = f"scripts/float_oracle.py --strait {arguments.strait} --seed {seed} --case {which}"
            sys.exit(f"case {which} ({case.join_type}{nulls}): {wrong}\nits tables: {folder}\nrepeat: {repeat}")
        shutil.rmtree(folder)
    if arguments.case is None and differing == 0:
        sys.exit("no pair of keys with different bits was joined: the cases do not test what they should")
    print(f"{len(cases)} cases with float keys agree with DuckDB; {differing} pairs of keys differ in their bits")


if __name__ == "__main__":
    main()
