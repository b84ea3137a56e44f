"""DuckDB: on Arrow tables as they are, or on tables of its own, copied before the clock starts
(`native`); the joined rows become an Arrow table, or a table of its own too (`table`). Whole jobs keep the order of
rows (`ordered`, which is its default), or do not (`unordered`)."""

import duckdb

VERSION = duckdb.__version__


class Ready:
    def __init__(self, build, probe, threads, variant):
        self.variant = variant
        self.connection = duckdb.connect(":memory:")
        self.connection.execute(f"SET threads = {threads}")
        # Rows may come in any order, as in Strait.
        self.connection.execute("SET preserve_insertion_order = false")
        self.payloads = build.column_names[1:] + probe.column_names[1:]
        for name, table in [("build", build), ("probe", probe)]:
            if variant in ("native", "table"):
                self.connection.register("loading", table)
                self.connection.execute(f"CREATE TABLE {name} AS SELECT * FROM loading")
                self.connection.unregister("loading")
            else:
                self.connection.register(name, table)

    def aggregate(self):
        sums = ", ".join(f"sum({name})" for name in self.payloads)
        query = f"SELECT count(*), {sums} FROM build JOIN probe USING (key)"
        rows, *sums = self.connection.execute(query).fetchone()
        return rows, sums

    def materialise(self):
        columns = ", ".join(["key", *self.payloads])
        query = f"SELECT {columns} FROM build JOIN probe USING (key)"
        if self.variant == "table":
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE joined AS {query}")
            return None
        return self.connection.sql(query).to_arrow_table()

    def summed(self, table):
        import pyarrow.compute as pc

        if self.variant == "table":
            sums = ", ".join(f"sum({name})" for name in self.payloads)
            rows, *sums = self.connection.execute(f"SELECT count(*), {sums} FROM joined").fetchone()
            self.connection.execute("DROP TABLE joined")
            return rows, sums
        return table.num_rows, [pc.sum(table[name]).as_py() for name in self.payloads]


prepare = Ready


def job_imports(spec):
    if any(table["format"] == "arrow" for table in spec["tables"]):
        import pyarrow.dataset  # noqa: F401


def job(spec, out, variant, threads):
    connection = duckdb.connect(":memory:")
    connection.execute(f"SET threads = {threads}")
    ordered = "true" if variant == "ordered" else "false"
    connection.execute(f"SET preserve_insertion_order = {ordered}")
    if spec.get("memory"):
        connection.execute(f"SET memory_limit = '{spec['memory']}B'")
        connection.execute(f"SET temp_directory = '{spec['temp']}/duckdb'")
    for table in spec["tables"]:
        name, path, kind = table["name"], table["path"], table["format"]
        if kind == "arrow":
            # DuckDB reads Arrow files through PyArrow.
            import pyarrow.dataset

            connection.register(name, pyarrow.dataset.dataset(path, format="ipc"))
        else:
            files = f"{path}*.{kind}" if path.endswith("/") else path
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_{kind}('{files}')")
    if spec["output"] is None:
        return connection.execute(spec["sql"]).fetchone()[0]
    kind, codec = spec["output"]["format"], spec["output"]["compression"]
    options = f"FORMAT {kind}, COMPRESSION {codec}"
    connection.execute(f"COPY ({spec['sql']}) TO '{out}' ({options})")


def batches(path):
    rows = duckdb.connect(":memory:").sql(f"SELECT * FROM read_parquet('{path}')")
    reader = rows.to_arrow_reader(1 << 16)
    return reader.schema, reader
