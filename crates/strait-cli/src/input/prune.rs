//! Finds row groups without a match: their statistics show that no key of the other table is in them.

use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::basic::{ColumnOrder, SortOrder};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;

/// No value of a column is less than the first bound or greater than the second one. Footers may have
/// truncated texts, so the bounds themselves need not be values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Bounds {
    /// Integers of any type.
    Integers(i128, i128),
    /// Dates or timestamps of one type.
    Times(DataType, i128, i128),
    /// Texts or binary values, in the order of their bytes.
    Bytes(Vec<u8>, Vec<u8>),
}

impl Bounds {
    /// Returns bounds of both columns; `None` if their values cannot be compared.
    pub(super) fn merged(self, other: Bounds) -> Option<Bounds> {
        use Bounds::{Bytes, Integers, Times};
        match (self, other) {
            (Integers(a, b), Integers(c, d)) => Some(Integers(a.min(c), b.max(d))),
            (Times(t, a, b), Times(u, c, d)) if t == u => Some(Times(t, a.min(c), b.max(d))),
            (Bytes(a, b), Bytes(c, d)) => Some(Bytes(a.min(c), b.max(d))),
            _ => None,
        }
    }

    /// Returns whether a value of one column may be equal to a value of the other one.
    fn meets(&self, other: &Bounds) -> bool {
        use Bounds::{Bytes, Integers, Times};
        match (self, other) {
            (Integers(a, b), Integers(c, d)) => a <= d && c <= b,
            (Times(t, a, b), Times(u, c, d)) if t == u => a <= d && c <= b,
            (Bytes(a, b), Bytes(c, d)) => a <= d && c <= b,
            _ => true,
        }
    }
}

/// A column of a Parquet file.
pub(super) struct KeyColumn<'a> {
    data_type: &'a DataType,
    leaf: usize,
    /// Whether the smallest and largest texts are those in the order of their bytes.
    is_by_bytes: bool,
}

impl<'a> KeyColumn<'a> {
    pub(super) fn new(file: &'a ArrowReaderMetadata, column: usize) -> Option<KeyColumn<'a>> {
        let schema = file.parquet_schema();
        let mut leaves = 0..schema.num_columns();
        let leaf = leaves.find(|&leaf| schema.get_column_root_idx(leaf) == column)?;
        let data_type = match file.schema().fields().get(column)?.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        let order = file.metadata().file_metadata().column_order(leaf);
        let is_by_bytes = order == ColumnOrder::TYPE_DEFINED_ORDER(SortOrder::UNSIGNED);
        Some(KeyColumn { data_type, leaf, is_by_bytes })
    }

    /// Returns the bounds of the values that are not null, if the footer has them.
    pub(super) fn bounds(&self, group: &RowGroupMetaData) -> Option<Bounds> {
        use DataType::{
            Binary, BinaryView, Date32, Int8, Int16, Int32, Int64, LargeBinary, LargeUtf8,
            Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8, Utf8View,
        };
        let known = group.column(self.leaf).statistics()?;
        // Old writers compared unsigned values and texts as if they were signed.
        if known.is_min_max_deprecated() {
            return None;
        }
        let is_unsigned = matches!(self.data_type, UInt8 | UInt16 | UInt32 | UInt64);
        match (self.data_type, known) {
            (Utf8 | LargeUtf8 | Utf8View | Binary | LargeBinary | BinaryView, known) => {
                let Statistics::ByteArray(_) = known else { return None };
                let (low, high) = (known.min_bytes_opt()?, known.max_bytes_opt()?);
                let is_order = self.is_by_bytes && low <= high;
                is_order.then(|| Bounds::Bytes(low.to_vec(), high.to_vec()))
            }
            // Floats may be NaN, which is in no range.
            (
                Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64 | Date32
                | Timestamp(..),
                known,
            ) => {
                let (low, high): (i128, i128) = match known {
                    Statistics::Int32(v) => match (*v.min_opt()?, *v.max_opt()?) {
                        (low, high) if is_unsigned => ((low as u32).into(), (high as u32).into()),
                        (low, high) => (low.into(), high.into()),
                    },
                    Statistics::Int64(v) => match (*v.min_opt()?, *v.max_opt()?) {
                        (low, high) if is_unsigned => ((low as u64).into(), (high as u64).into()),
                        (low, high) => (low.into(), high.into()),
                    },
                    _ => return None,
                };
                let bounds = match self.data_type {
                    Date32 | Timestamp(..) => Bounds::Times(self.data_type.clone(), low, high),
                    _ => Bounds::Integers(low, high),
                };
                (low <= high).then_some(bounds)
            }
            _ => None,
        }
    }

    /// Returns the number of nulls, if the footer has it.
    fn nulls(&self, group: &RowGroupMetaData) -> Option<u64> {
        group.column(self.leaf).statistics()?.null_count_opt()
    }

    /// Returns whether the row group has no value at all.
    pub(super) fn is_null(&self, group: &RowGroupMetaData) -> bool {
        let values = group.column(self.leaf).num_values().max(0) as u64;
        self.nulls(group) == Some(values)
    }

    /// Returns whether a row of the group may match a row of the other table, whose keys have the bounds
    /// `other`. With `nulls_match`, a null matches a null.
    pub(super) fn may_match(
        &self,
        group: &RowGroupMetaData,
        other: &Bounds,
        nulls_match: bool,
    ) -> bool {
        let has_nulls = self.nulls(group) != Some(0);
        nulls_match && has_nulls || self.bounds(group).is_none_or(|bounds| bounds.meets(other))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::file::metadata::ColumnChunkMetaData;
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::types::SchemaDescriptor;

    use super::*;

    /// A row group with the keys 1 to 5, by statistics of the current kind or of the deprecated one.
    fn group(is_deprecated: bool) -> RowGroupMetaData {
        let schema = parse_message_type("message m { REQUIRED INT64 k; }").unwrap();
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let known = Statistics::int64(Some(1), Some(5), None, Some(0), is_deprecated);
        let column = ColumnChunkMetaData::builder(schema.column(0)).set_statistics(known);
        let column = column.set_num_values(5).build().unwrap();
        let group = RowGroupMetaData::builder(schema).set_num_rows(5);
        group.add_column_metadata(column).build().unwrap()
    }

    /// Old writers compared some types wrongly, so their bounds prove nothing.
    #[test]
    fn deprecated_bounds_are_not_used() {
        let key = KeyColumn { data_type: &DataType::Int64, leaf: 0, is_by_bytes: false };
        let elsewhere = Bounds::Integers(7, 9);
        assert_eq!(key.bounds(&group(false)), Some(Bounds::Integers(1, 5)));
        assert!(!key.may_match(&group(false), &elsewhere, false));
        assert_eq!(key.bounds(&group(true)), None);
        assert!(key.may_match(&group(true), &elsewhere, false));
    }
}
