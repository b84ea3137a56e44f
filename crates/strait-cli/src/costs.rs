//! Estimates the work of reading the tables and writing the output. The planner adds it to the time of the join.
//!
//! All constants are nanoseconds of one core. They were measured on a server core of 2026 with `strait join
//! --threads 1`, on `orders` and `lineitem` of TPC-H SF 0.3 in memory (1.8 million rows of output, 25 columns),
//! as differences of processor times between jobs. Where a comment says "assumed", nothing was measured.

use arrow::datatypes::{DataType, Schema};

use crate::output::{Destination, FileFormat, Notation, Squeeze};

/// Reading, per byte unless the name says otherwise.
pub(crate) mod read {
    /// Columns of Parquet files, per byte in memory: values of a fixed width, and texts. It includes the
    /// decompression.
    pub(crate) const PARQUET_FIXED: f64 = 0.5;
    pub(crate) const PARQUET_TEXT: f64 = 1.0;
    /// Per byte of a CSV file. `CSV_VALUE` is added per value that the join needs.
    pub(crate) const CSV: f64 = 1.5;
    pub(crate) const CSV_VALUE: f64 = 27.0;
    pub(crate) const JSON: f64 = 6.8;
    pub(crate) const ARROW: f64 = 0.25;
    /// Decompression, per byte of text. `SQUEEZED` is the number of bytes of text per byte of the compressed file.
    /// (For zstd, it is assumed.)
    pub(crate) const GZIP: f64 = 2.3;
    pub(crate) const ZSTD: f64 = 0.7;
    pub(crate) const SQUEEZED: f64 = 2.7;
}

/// Writing, per value.
mod write {
    /// The first number is for a value of a fixed width, and the second one for a text. It is an average: texts with
    /// few different values take as little time as numbers, and long texts take three times as much.
    pub(super) const PARQUET: [f64; 2] = [12.0, 50.0];
    pub(super) const ARROW: [f64; 2] = [5.0, 12.0];
    pub(super) const CSV: f64 = 60.0;
    pub(super) const JSON: f64 = 80.0;
    /// The additional time per value if the text file is compressed.
    pub(super) const GZIP: f64 = 75.0;
    pub(super) const ZSTD: f64 = 37.0;
}

/// Converts nanoseconds to seconds.
pub(crate) const NANOSECOND: f64 = 1e-9;

/// Returns whether the values of a column have no fixed width.
pub(crate) fn is_text(data_type: &DataType) -> bool {
    data_type.primitive_width().is_none() && *data_type != DataType::Boolean
}

/// Returns the seconds of writing a row. Showing the first rows takes no time that matters.
pub(crate) fn writing_per_row(output: Option<&Destination>, schema: &Schema) -> f64 {
    let format = match output {
        None => return 0.0,
        Some(Destination::Stdout) => FileFormat::IpcStream,
        Some(Destination::File(_, format) | Destination::Object(_, format)) => *format,
    };
    let [fixed, text] = match format {
        FileFormat::Parquet => write::PARQUET,
        FileFormat::IpcFile | FileFormat::IpcStream => write::ARROW,
        FileFormat::Text(notation, squeeze) => {
            let value = match notation {
                Notation::Delimited(_) => write::CSV,
                Notation::JsonLines => write::JSON,
            };
            let squeezing = match squeeze {
                Squeeze::None => 0.0,
                Squeeze::Gzip => write::GZIP,
                Squeeze::Zstd => write::ZSTD,
            };
            [value + squeezing; 2]
        }
    };
    let of = |data_type: &DataType| if is_text(data_type) { text } else { fixed };
    schema.fields().iter().map(|field| of(field.data_type())).sum::<f64>() * NANOSECOND
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    /// The order of the measured times: Arrow, Parquet, CSV, JSON lines, compressed CSV.
    #[test]
    fn formats_cost_what_was_measured() {
        let fields = [("a", DataType::Int64), ("b", DataType::Utf8), ("c", DataType::Date32)];
        let fields = fields.map(|(name, data_type)| Field::new(name, data_type, true));
        let schema = Schema::new(fields.to_vec());
        let of = |name: &str| {
            let destination: Destination = name.parse().expect("a known ending");
            writing_per_row(Some(&destination), &schema)
        };
        let names = ["-", "o.parquet", "o.tsv", "o.jsonl", "o.csv.zst", "o.csv.gz"];
        let costs = names.map(of);
        assert!(costs.is_sorted_by(|a, b| a < b), "{costs:?}");
        assert_eq!(of("o.parquet"), (12.0 + 50.0 + 12.0) * 1e-9);
        assert_eq!(writing_per_row(None, &schema), 0.0);
    }
}
