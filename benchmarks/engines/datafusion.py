"""DataFusion: tables in memory, their batches dealt to as many partitions as there are threads, or files."""

import datafusion
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionConfig, SessionContext

VERSION = datafusion.__version__


class Ready:
    def __init__(self, build, probe, threads, variant):
        config = SessionConfig().with_target_partitions(threads)
        self.context = SessionContext(config)
        self.payloads = build.column_names[1:] + probe.column_names[1:]
        for name, table in [("build", build), ("probe", probe)]:
            batches = table.to_batches()
            partitions = [batches[i::threads] for i in range(threads)]
            self.context.register_record_batches(name, [p for p in partitions if p])

    def aggregate(self):
        sums = ", ".join(f"sum({name})" for name in self.payloads)
        query = f"SELECT count(*), {sums} FROM build JOIN probe ON build.key = probe.key"
        batches = self.context.sql(query).collect()
        row = [column[0].as_py() for batch in batches if batch.num_rows for column in batch.columns]
        return row[0], row[1:]

    def materialise(self):
        columns = ", ".join(["build.key", *self.payloads])
        query = f"SELECT {columns} FROM build JOIN probe ON build.key = probe.key"
        return self.context.sql(query).collect()

    def summed(self, batches):
        table = pa.Table.from_batches(batches)
        return table.num_rows, [pc.sum(table[name]).as_py() for name in self.payloads]


prepare = Ready


def job(spec, out, variant, threads):
    context = SessionContext(SessionConfig().with_target_partitions(threads))
    register = {
        "parquet": context.register_parquet,
        "csv": context.register_csv,
        "arrow": context.register_arrow,
    }
    for table in spec["tables"]:
        register[table["format"]](table["name"], table["path"])
    if spec["output"] is None:
        batches = context.sql(spec["sql"]).collect()
        return next(batch.column(0)[0].as_py() for batch in batches if batch.num_rows)
    kind, codec = spec["output"]["format"], spec["output"]["compression"]
    # Its name for zstd has a level; 3 is its default.
    codec = "zstd(3)" if codec == "zstd" else codec
    options = f"'format.compression' '{codec}'"
    copy = f"COPY ({spec['sql']}) TO '{out}' STORED AS {kind.upper()} OPTIONS ({options})"
    context.sql(copy).collect()
