"""Polars: the streaming engine, on frames made from the Arrow tables before the clock starts, or on files. Whole
jobs need not keep the order of rows."""

import polars as pl

VERSION = pl.__version__


class Ready:
    def __init__(self, build, probe, threads, variant):
        self.payloads = build.column_names[1:] + probe.column_names[1:]
        self.build = pl.from_arrow(build)
        self.probe = pl.from_arrow(probe)
        assert pl.thread_pool_size() == threads

    def joined(self):
        return self.probe.lazy().join(self.build.lazy(), on="key")

    def aggregate(self):
        # Without the cast, sums of narrow integers would overflow.
        sums = [pl.col(name).cast(pl.Int64).sum() for name in self.payloads]
        row = self.joined().select(pl.len(), *sums).collect(engine="streaming").row(0)
        return row[0], row[1:]

    def materialise(self):
        return self.joined().select("key", *self.payloads).collect(engine="streaming")

    def summed(self, frame):
        return frame.height, [frame[name].cast(pl.Int64).sum() for name in self.payloads]


prepare = Ready


def job(spec, out, variant, threads):
    assert pl.thread_pool_size() == threads
    # The other engines recognise dates without being asked.
    scan = {
        "parquet": pl.scan_parquet,
        "csv": lambda path: pl.scan_csv(path, try_parse_dates=True),
        "arrow": pl.scan_ipc,
    }
    left, right = (scan[table["format"]](table["path"]) for table in spec["tables"])
    keys = [table["key"] for table in spec["tables"]]
    # Both key columns stay if the output has both.
    both = keys[1] in spec["columns"]
    joined = left.join(
        right, how=spec["join"], left_on=keys[0], right_on=keys[1], coalesce=not both
    )
    if spec["output"] is None:
        return joined.select(pl.len()).collect(engine="streaming").item()
    kind, codec = spec["output"]["format"], spec["output"]["compression"]
    rows = joined.select(spec["columns"])
    sink = rows.sink_parquet if kind == "parquet" else rows.sink_csv
    sink(out, compression=codec, maintain_order=False, engine="streaming")


def batches(path):
    rows = pl.scan_parquet(path)
    schema = rows.collect_schema().to_frame().to_arrow().schema
    frames = rows.collect_batches()
    return schema, (batch for frame in frames for batch in frame.to_arrow().to_batches())
