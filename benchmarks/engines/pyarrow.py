"""PyArrow: its streaming engine, Acero. The table on the right is the one it builds on."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import acero

VERSION = pa.__version__


class Ready:
    def __init__(self, build, probe, threads, variant):
        self.build, self.probe = build, probe
        self.names = [build.column_names[1:], probe.column_names[1:]]
        self.payloads = self.names[0] + self.names[1]

    def joined(self):
        sources = [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
            for table in (self.probe, self.build)
        ]
        options = acero.HashJoinNodeOptions(
            "inner", ["key"], ["key"], ["key", *self.names[1]], self.names[0]
        )
        return acero.Declaration("hashjoin", options, inputs=sources)

    def aggregate(self):
        aggregates = [([], "count_all", None, "rows")]
        aggregates += [(name, "sum", None, name) for name in self.payloads]
        options = acero.AggregateNodeOptions(aggregates)
        table = acero.Declaration("aggregate", options, inputs=[self.joined()]).to_table()
        return table["rows"][0].as_py(), [table[name][0].as_py() for name in self.payloads]

    def materialise(self):
        return self.joined().to_table()

    def summed(self, table):
        return table.num_rows, [pc.sum(table[name]).as_py() for name in self.payloads]


prepare = Ready


def batches(path):
    file = pq.ParquetFile(path)
    return file.schema_arrow, file.iter_batches()
