"""DuckDB: on Arrow tables as they are, or on tables of its own, copied before the clock starts
(`native`); the joined rows become an Arrow table, or a table of its own too (`table`)."""

import duckdb
import pyarrow.compute as pc

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
        if self.variant == "table":
            sums = ", ".join(f"sum({name})" for name in self.payloads)
            rows, *sums = self.connection.execute(f"SELECT count(*), {sums} FROM joined").fetchone()
            self.connection.execute("DROP TABLE joined")
            return rows, sums
        return table.num_rows, [pc.sum(table[name]).as_py() for name in self.payloads]


prepare = Ready
