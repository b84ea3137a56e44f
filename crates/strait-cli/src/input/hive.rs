//! Folders named `key=value` become columns, as in Hive, Spark and DuckDB.

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use arrow::array::{ArrayRef, Date32Array, Int64Array, StringArray, UInt32Array, new_null_array};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field};

use super::cast::{cast_array, shown};
use super::find::FoundFile;
use super::table::TableFile;

/// Hive's name for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The `key=value` of a folder. A value of None is null.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Partition {
    pub(super) key: String,
    pub(super) value: Option<String>,
}

/// Returns the partitions in the names of the folders between `root` and the file.
pub(super) fn partitions(root: &Path, file: &Path) -> Vec<Partition> {
    let below = file.strip_prefix(root).unwrap_or(file);
    let folders = below.parent().into_iter().flat_map(Path::iter);
    folders
        .filter_map(|folder| {
            let folder = folder.to_str()?;
            let (key, value) = folder.split_once('=')?;
            let value = (value != NULL).then(|| decode(value));
            (!key.is_empty()).then(|| Partition { key: decode(key), value })
        })
        .collect()
}

/// Returns the columns of the partitions: Int64 if all values are integers, Date32 if all are dates, Utf8
/// otherwise. All files must have the same keys in their folders.
pub(super) fn fields(files: &[FoundFile]) -> anyhow::Result<Vec<Field>> {
    let Some(first) = files.first() else { return Ok(Vec::new()) };
    let keys = |file: &FoundFile| -> Vec<String> {
        file.partitions.iter().map(|partition| partition.key.clone()).collect()
    };
    let expected = keys(first);
    if let Some(other) = files.iter().find(|file| keys(file) != expected) {
        bail!(
            "files of one table must lie under the same key=value folders: {} lies under [{}], {} \
             under [{}]; pick those that belong together with a quoted glob",
            first.path.display(),
            expected.join(", "),
            other.path.display(),
            keys(other).join(", ")
        );
    }
    let field = |(i, key): (usize, &String)| {
        let values = files.iter().map(|file| file.partitions[i].value.as_deref());
        Field::new(key, infer(values.flatten()), true)
    };
    Ok(expected.iter().enumerate().map(field).collect())
}

fn infer<'a>(values: impl Iterator<Item = &'a str> + Clone) -> DataType {
    let mut some = values.clone().peekable();
    if some.peek().is_none() {
        DataType::Utf8
    } else if values.clone().all(|value| value.parse::<i64>().is_ok()) {
        DataType::Int64
    } else if values.clone().all(|value| date(value).is_some()) {
        DataType::Date32
    } else {
        DataType::Utf8
    }
}

/// Returns a column that repeats one value `rows` times.
pub(super) fn column(partition: &Partition, data_type: &DataType, rows: usize) -> ArrayRef {
    let value = partition.value.as_deref();
    match (data_type, value) {
        (DataType::Int64, Some(text)) => match text.parse() {
            Ok(value) => Arc::new(Int64Array::from_value(value, rows)),
            Err(_) => new_null_array(data_type, rows),
        },
        (DataType::Date32, Some(text)) => match date(text) {
            Some(days) => Arc::new(Date32Array::from_value(days, rows)),
            None => new_null_array(data_type, rows),
        },
        (DataType::Utf8, Some(text)) => {
            Arc::new(StringArray::from_iter_values(std::iter::repeat_n(text, rows)))
        }
        // The cast was checked before.
        (_, Some(text)) => {
            let value = cast_array(&one(text), data_type);
            let repeated =
                value.and_then(|value| take(&value, &UInt32Array::from_value(0, rows), None).ok());
            repeated.unwrap_or_else(|| new_null_array(data_type, rows))
        }
        (_, None) => new_null_array(data_type, rows),
    }
}

/// Rejects a type that the value of a folder cannot be cast to.
pub(super) fn check_cast(files: &[TableFile], key: &str, to: &DataType) -> anyhow::Result<()> {
    for TableFile { found, .. } in files {
        let partition = found.partitions.iter().find(|partition| partition.key == key);
        let Some(value) = partition.and_then(|partition| partition.value.as_deref()) else {
            continue;
        };
        if cast_array(&one(value), to).is_none() {
            bail!(
                "{}: folder column \"{key}\" has \"{value}\", which cannot be cast to {}; --cast the column to \
                 another type",
                found.path.display(),
                shown(to)
            );
        }
    }
    Ok(())
}

fn one(value: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![value]))
}

/// Returns the days since 1970 of a date `YYYY-MM-DD`.
fn date(text: &str) -> Option<i32> {
    let digits = |c: char| c.is_ascii_digit();
    let shaped = text.len() == 10
        && text.char_indices().all(|(i, c)| if i == 4 || i == 7 { c == '-' } else { digits(c) });
    if !shaped {
        return None;
    }
    let days = cast(&one(text), &DataType::Date32).ok()?;
    let days = days.as_any().downcast_ref::<Date32Array>()?;
    days.iter().next().flatten()
}

/// Decodes percent escapes: `%2F` becomes `/`.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = bytes.get(i + 1..i + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| bytes[i] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                i += 3;
            }
            None => {
                plain.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_become_partitions() {
        let file = Path::new("/data/sales/year=2024/city=S%C3%A3o%20Paulo/plain/part.csv");
        let found = partitions(Path::new("/data/sales"), file);
        let expected = [("year", "2024"), ("city", "São Paulo")]
            .map(|(k, v)| Partition { key: k.to_string(), value: Some(v.to_string()) });
        assert_eq!(found, expected);
        let null = partitions(Path::new("d"), Path::new("d/k=__HIVE_DEFAULT_PARTITION__/f.csv"));
        assert_eq!(null, [Partition { key: "k".to_string(), value: None }]);
    }

    #[test]
    fn values_choose_the_type() {
        assert_eq!(infer(["1", "-7", "007"].into_iter()), DataType::Int64);
        assert_eq!(infer(["2024-02-29", "1999-12-31"].into_iter()), DataType::Date32);
        assert_eq!(infer(["2024-02-30", "1999-12-31"].into_iter()), DataType::Utf8);
        assert_eq!(infer(["1", "x"].into_iter()), DataType::Utf8);
        assert_eq!(infer(std::iter::empty()), DataType::Utf8);
        assert_eq!(date("1970-01-02"), Some(1));
    }

    #[test]
    fn percent_signs_that_code_nothing_stay() {
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%2f"), "%zz/");
    }
}
