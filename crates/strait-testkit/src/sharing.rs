//! Dictionary columns of several batches, which may share their values.

use std::collections::HashMap;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;

use crate::encode::{dictionary_array, encode};
use crate::random::Rng;
use crate::value::{Comparison, Value};

/// How the batches of a dictionary column relate to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Each batch has its own dictionary, with only its own values in its own order.
    Own,
    /// Each batch has all values of the column in the same order, each time in separate memory.
    Equal,
    /// All batches point to the same values.
    Pointer,
}

impl Sharing {
    /// All variants.
    pub const ALL: [Sharing; 3] = [Sharing::Own, Sharing::Equal, Sharing::Pointer];
}

/// The dictionary that the batches of a column share.
pub(crate) struct Common<'a> {
    data_type: &'a DataType,
    comparison: &'a Comparison,
    entries: Vec<Value>,
    values: ArrayRef,
}

impl<'a> Common<'a> {
    /// Makes the dictionary of all these cells. Returns `None` if the column is no dictionary, or if its keys
    /// cannot address that many values.
    pub(crate) fn new(
        rng: &mut Rng,
        data_type: &'a DataType,
        comparison: &'a Comparison,
        cells: &[Value],
    ) -> Option<Common<'a>> {
        let DataType::Dictionary(_, value_type) = data_type else { return None };
        let mut entries: Vec<Value> = distinct(cells).into_iter().cloned().collect();
        rng.shuffle(&mut entries);
        if entries.len() > rooms(data_type) {
            return None;
        }
        let values = encode(rng, value_type, comparison, &entries);
        Some(Common { data_type, comparison, entries, values })
    }

    /// Makes an array of some of the cells.
    pub(crate) fn array(&self, rng: &mut Rng, sharing: Sharing, cells: &[Value]) -> ArrayRef {
        let DataType::Dictionary(index, value_type) = self.data_type else {
            unreachable!("checked by new")
        };
        let places: HashMap<&Value, usize> =
            self.entries.iter().enumerate().map(|(place, entry)| (entry, place)).collect();
        let nulls_by_entry = rng.chance(1, 2);
        let keys: Vec<Value> = (cells.iter())
            .map(|cell| match places.get(cell) {
                Some(&place) if nulls_by_entry || !cell.is_null() => Value::Int(place as i128),
                _ => Value::Null,
            })
            .collect();
        let keys = encode(rng, index, &Comparison::alone(index), &keys);
        let values = match sharing {
            Sharing::Pointer => self.values.clone(),
            _ => encode(rng, value_type, self.comparison, &self.entries),
        };
        dictionary_array(index, &keys, values)
    }
}

/// Returns the distinct values, in their order.
pub(crate) fn distinct(values: &[Value]) -> Vec<&Value> {
    let seen: std::collections::HashSet<&Value> = values.iter().collect();
    let mut distinct: Vec<_> = seen.into_iter().collect();
    distinct.sort_unstable();
    distinct
}

/// Returns how many distinct values an array of this type can hold, whatever the encoding adds. The key type
/// of a dictionary limits this number.
pub fn rooms(data_type: &DataType) -> usize {
    use DataType::*;
    match data_type {
        Dictionary(index, values) => {
            let own = match **index {
                Int8 | UInt8 => 100,
                Int16 | UInt16 => 32_000,
                _ => usize::MAX,
            };
            own.min(rooms(values))
        }
        other => children(other).into_iter().map(rooms).min().unwrap_or(usize::MAX),
    }
}

/// Returns how many rows an array of this type can have. The type of run ends limits this number.
pub fn longest(data_type: &DataType) -> usize {
    use DataType::*;
    match data_type {
        RunEndEncoded(ends, _) if *ends.data_type() == Int16 => i16::MAX as usize,
        // A child array of these types has a few cells per row.
        List(f) | LargeList(f) | ListView(f) | LargeListView(f) | FixedSizeList(f, _) => {
            longest(f.data_type()) / 4
        }
        Map(f, _) => longest(f.data_type()) / 4,
        Struct(_) | Union(_, _) => {
            children(data_type).into_iter().map(longest).min().unwrap_or(usize::MAX)
        }
        _ => usize::MAX,
    }
}

fn children(data_type: &DataType) -> Vec<&DataType> {
    use DataType::*;
    match data_type {
        List(f) | LargeList(f) | ListView(f) | LargeListView(f) | FixedSizeList(f, _) => {
            vec![f.data_type()]
        }
        Map(f, _) | RunEndEncoded(_, f) => vec![f.data_type()],
        Struct(fields) => fields.iter().map(|f| f.data_type()).collect(),
        Union(fields, _) => fields.iter().map(|(_, f)| f.data_type()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};

    use super::*;
    use crate::decode::decode;
    use crate::kinds::{dictionary, runs};

    #[test]
    fn batches_share_values_by_pointer_or_have_equal_ones_elsewhere() {
        let mut rng = Rng::new(1);
        let data_type = dictionary(DataType::Int8, DataType::Utf8View);
        let comparison = Comparison::alone(&data_type);
        let cell = |i: usize| match i % 8 {
            0 => Value::Null,
            i => Value::Bytes(format!("a text longer than a view holds {i}").into_bytes()),
        };
        let cells: Vec<Value> = (0..100).map(cell).collect();
        let common = Common::new(&mut rng, &data_type, &comparison, &cells).unwrap();
        for sharing in [Sharing::Equal, Sharing::Pointer] {
            let [first, second] =
                [0..50, 50..100].map(|rows| common.array(&mut rng, sharing, &cells[rows]));
            assert_eq!(decode(&first, &comparison), cells[..50]);
            assert_eq!(decode(&second, &comparison), cells[50..]);
            let values = [&first, &second].map(|a| a.as_any_dictionary().values().to_data());
            assert_eq!(values[0], values[1]);
            let views = values.map(|v| v.buffers()[0].as_ptr());
            assert_eq!(views[0] == views[1], sharing == Sharing::Pointer);
        }
    }

    #[test]
    fn a_dictionary_of_too_many_values_is_not_shared() {
        let mut rng = Rng::new(1);
        let cells: Vec<Value> = (0..1000).map(Value::Int).collect();
        for (index, fits) in [(DataType::UInt8, false), (DataType::UInt16, true)] {
            let data_type = dictionary(index, DataType::Int64);
            let comparison = Comparison::alone(&data_type);
            assert_eq!(Common::new(&mut rng, &data_type, &comparison, &cells).is_some(), fits);
        }
    }

    #[test]
    fn bounds_of_nested_types_are_found() {
        let field = |t| arrow::datatypes::Field::new("f", t, true);
        let nested =
            DataType::Struct(vec![field(dictionary(DataType::Int8, DataType::Utf8))].into());
        assert_eq!(rooms(&nested), 100);
        assert_eq!(longest(&nested), usize::MAX);
        let nested = DataType::Struct(vec![field(runs(DataType::Int16, DataType::Utf8))].into());
        assert_eq!(longest(&nested), 32_767);
    }
}
