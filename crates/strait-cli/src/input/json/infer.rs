//! Infers the columns of JSON lines and their types.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{anyhow, bail};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use indexmap::IndexMap;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{BLOCK, COLUMN, Lines, PARSED, check, checked, syntax};
use crate::failure::{of_join, one_line};
use crate::input::block::BlockReader;
use crate::input::format::Squeeze;
use crate::input::schema::MAX_COLUMNS;
use crate::input::text::open_now;
use crate::memory::Memory;

/// Returns the columns of a file, in the order in which they appear first, with types that hold all values of
/// the first `sample` lines. A column without a value has the null type.
pub(in crate::input) fn infer(
    path: &Path,
    squeeze: Squeeze,
    sample: Option<usize>,
    memory: &Memory,
) -> anyhow::Result<Schema> {
    let shown = path.display();
    let refused = |error| of_join(error).context(format!("cannot read {shown}"));
    let what = format!("inferring the types of {shown}");
    // A short line can have many new fields, and each takes more memory than its text.
    let block = memory.limit().map_or(BLOCK, |limit| limit / 1024).clamp(1, BLOCK);
    let lines = Lines { block, what };
    let opened = open_now(path, squeeze, memory)?;
    let mut reader = BlockReader::new(opened, memory, &lines.what).map_err(refused)?;
    let mut reservation = memory.reserve(0, &lines.what).map_err(refused)?;
    let (mut fields, mut walk, mut seen) = (IndexMap::new(), Walk::default(), 0);
    let sample = sample.unwrap_or(usize::MAX);
    while seen < sample {
        let read =
            reader.next(&lines, memory).map_err(|error| {
                match strait::Error::from_arrow(error) {
                    strait::Error::Arrow { source, .. } => {
                        anyhow!("cannot read {shown}: {}", one_line(&source.to_string()))
                    }
                    error => refused(error),
                }
            })?;
        let Some(block) = read else { break };
        let text = PARSED * block.text.len() as u64;
        memory.resize(&mut reservation, walk.bytes + text, &lines.what).map_err(refused)?;
        let numbered = (block.lines_before + 1..).zip(block.text.split(|&byte| byte == b'\n'));
        let numbered = numbered.filter(|(_, line)| !line.trim_ascii().is_empty());
        for (number, line) in numbered.take(sample - seen) {
            seen += 1;
            let wrong = |why: String| anyhow!("{shown}, line {number}: {why}");
            walked(line, &mut fields, &mut walk).map_err(wrong)?;
        }
        memory.resize(&mut reservation, walk.bytes, &lines.what).map_err(refused)?;
        if walk.fields > MAX_COLUMNS {
            bail!("cannot read {shown}: its objects have more than {MAX_COLUMNS} different fields");
        }
    }
    log::debug!("{shown}: types inferred from {seen} line(s)");
    let schema = Schema::new(fields_of(fields));
    checked(schema, path)
}

/// Rejects a line that does not begin an object.
fn check_start(line: &[u8]) -> Result<(), String> {
    match line.trim_ascii_start().first() {
        Some(b'{') => Ok(()),
        _ => check(line),
    }
}

/// Returns the type that holds the values of both types.
pub(in crate::input) fn merge(a: &DataType, b: &DataType) -> Option<DataType> {
    use DataType::{Boolean, Decimal128, Float64, Int64, List, Null, Struct, UInt64, Utf8};
    let is_number = |t: &DataType| matches!(t, Int64 | UInt64 | Float64 | Decimal128(..));
    let is_scalar = |t: &DataType| is_number(t) || matches!(t, Boolean | Utf8);
    Some(match (a, b) {
        _ if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (Float64, other) | (other, Float64) if is_number(other) => Float64,
        _ if is_number(a) && is_number(b) => WIDE,
        _ if is_scalar(a) && is_scalar(b) => Utf8,
        (List(a), List(b)) => list(merge(a.data_type(), b.data_type())?),
        (Struct(a), Struct(b)) => {
            let mut all: IndexMap<&str, DataType> =
                a.iter().map(|field| (field.name().as_str(), field.data_type().clone())).collect();
            for field in b {
                let merged = all.get(field.name().as_str());
                let merged = merged.map_or(Some(field.data_type().clone()), |known| {
                    merge(known, field.data_type())
                });
                all.insert(field.name(), merged?);
            }
            Struct(all.into_iter().map(|(name, of)| Field::new(name, of, true)).collect())
        }
        _ => return None,
    })
}

/// Returns the type after all files were sampled: text where no file had a value, also within other types.
pub(in crate::input) fn final_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Null => DataType::Utf8,
        DataType::List(values) => list(final_type(values.data_type())),
        DataType::Struct(fields) => {
            let field = |field: &Arc<Field>| {
                Field::new(field.name(), final_type(field.data_type()), field.is_nullable())
            };
            DataType::Struct(fields.iter().map(field).collect())
        }
        other => other.clone(),
    }
}

/// Holds every 64-bit integer, signed or not.
const WIDE: DataType = DataType::Decimal128(20, 0);

fn list(values: DataType) -> DataType {
    DataType::List(Arc::new(Field::new_list_field(values, true)))
}

/// The type of the values that were seen so far.
#[derive(Debug)]
enum Kind {
    /// Null, or a scalar.
    Scalar(DataType),
    List(Box<Kind>),
    Object(IndexMap<String, Kind>),
}

impl Kind {
    fn data_type(self) -> DataType {
        match self {
            Kind::Scalar(data_type) => data_type,
            Kind::List(values) => list(values.data_type()),
            Kind::Object(fields) => DataType::Struct(fields_of(fields)),
        }
    }

    /// Returns the kind of a type that was inferred.
    fn of(data_type: &DataType) -> Kind {
        match data_type {
            DataType::List(values) => Kind::List(Box::new(Kind::of(values.data_type()))),
            DataType::Struct(fields) => Kind::Object(kinds_of(fields)),
            scalar => Kind::Scalar(scalar.clone()),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Kind::Scalar(_) => "a single value",
            Kind::List(_) => "an array",
            Kind::Object(_) => "an object",
        }
    }
}

fn fields_of(fields: IndexMap<String, Kind>) -> Fields {
    fields.into_iter().map(|(name, kind)| Field::new(name, kind.data_type(), true)).collect()
}

/// The columns of a table whose types are known. They do not change any more.
pub(super) struct Known {
    fields: IndexMap<String, Kind>,
    walk: Walk,
    /// A field that is not a column.
    pub(super) unknown: Option<String>,
}

impl Known {
    pub(super) fn new(schema: &Schema) -> Known {
        let fields = kinds_of(schema.fields());
        Known { fields, walk: Walk { is_final: true, ..Walk::default() }, unknown: None }
    }

    /// Checks a line.
    pub(super) fn check(&mut self, line: &[u8]) -> Result<(), String> {
        let checked = walked(line, &mut self.fields, &mut self.walk);
        if self.unknown.is_none() {
            self.unknown = self.walk.unknown.take();
        }
        checked
    }
}

fn kinds_of(fields: &Fields) -> IndexMap<String, Kind> {
    fields.iter().map(|field| (field.name().clone(), Kind::of(field.data_type()))).collect()
}

/// Walks through a line, and adds its fields to those that were seen.
fn walked(line: &[u8], fields: &mut IndexMap<String, Kind>, walk: &mut Walk) -> Result<(), String> {
    check_start(line)?;
    walk.path.clear();
    let mut deserializer = serde_json::Deserializer::from_slice(line);
    let seen = (&mut deserializer).deserialize_map(Object { fields, walk });
    seen.and_then(|()| deserializer.end())
        .map_err(|error| walk.conflict.take().unwrap_or_else(|| syntax(&error)))
}

/// The state of a walk through a line.
#[derive(Debug, Default)]
struct Walk {
    /// Whether the types are known, so that values have to fit them.
    is_final: bool,
    /// A field that is not known, if the types are.
    unknown: Option<String>,
    /// The names of the fields that the current value is in.
    path: Vec<String>,
    /// Says where a value does not go with the values before it.
    conflict: Option<String>,
    /// The number of all fields that were found, nested ones too, and the memory that they take.
    fields: usize,
    bytes: u64,
}

/// Adds a value to what was seen.
struct Value<'a> {
    kind: &'a mut Kind,
    walk: &'a mut Walk,
}

impl<'a> Value<'a> {
    fn scalar<E: Error>(self, data_type: &DataType) -> Result<(), E> {
        let Kind::Scalar(seen) = self.kind else { return self.conflict("a single value") };
        match merge(seen, data_type) {
            Some(merged) if merged == *seen => Ok(()),
            Some(merged) if !self.walk.is_final => {
                *seen = merged;
                Ok(())
            }
            _ => {
                let column = self.walk.path.join(".");
                self.walk.conflict = Some(format!(
                    "column \"{column}\" is of type {seen}, as the first lines suggested, but this value is of \
                     type {data_type}; --sample all infers types from all lines"
                ));
                Err(E::custom("conflict"))
            }
        }
    }

    /// Makes the kind `made`, unless it is of that variant already.
    fn nested<E: Error>(&mut self, made: Kind) -> Result<(), E> {
        match (&*self.kind, &made) {
            (Kind::List(_), Kind::List(_)) | (Kind::Object(_), Kind::Object(_)) => Ok(()),
            (Kind::Scalar(DataType::Null), _) => {
                *self.kind = made;
                Ok(())
            }
            _ => Value { kind: self.kind, walk: self.walk }.conflict(made.name()),
        }
    }

    fn conflict<E: Error>(self, here: &str) -> Result<(), E> {
        let column = self.walk.path.join(".");
        self.walk.conflict = Some(format!(
            "column \"{column}\" is {here} here, but {} in earlier lines",
            self.kind.name()
        ));
        Err(E::custom("conflict"))
    }
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.scalar(&DataType::Boolean)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.scalar(&DataType::Int64)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        let is_signed = i64::try_from(value).is_ok();
        self.scalar(if is_signed { &DataType::Int64 } else { &DataType::UInt64 })
    }

    /// Serde reads `-0` as a float. Here it counts as an integer. Otherwise a single `-0` would turn a column of integers
    /// into floats, and floats cannot hold all large integers.
    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        let is_negative_zero = value == 0.0 && value.is_sign_negative();
        self.scalar(if is_negative_zero { &DataType::Int64 } else { &DataType::Float64 })
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.scalar(&DataType::Utf8)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut values: A) -> Result<(), A::Error> {
        self.nested(Kind::List(Box::new(Kind::Scalar(DataType::Null))))?;
        if let Kind::List(kind) = self.kind {
            while values.next_element_seed(Value { kind, walk: self.walk })?.is_some() {}
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, object: A) -> Result<(), A::Error> {
        self.nested(Kind::Object(IndexMap::new()))?;
        match self.kind {
            Kind::Object(fields) => Object { fields, walk: self.walk }.visit_map(object),
            _ => Ok(()),
        }
    }
}

/// Adds the fields of an object to those that were seen.
struct Object<'a> {
    fields: &'a mut IndexMap<String, Kind>,
    walk: &'a mut Walk,
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let Object { fields, walk } = self;
        let mut position = 0;
        while let Some(name) = object.next_key::<Cow<'de, str>>()? {
            // Most lines have the same fields in the same order.
            let at = match fields.get_index(position) {
                Some((known, _)) if *known == name => position,
                _ => match fields.get_index_of(name.as_ref()) {
                    Some(at) => at,
                    None if walk.is_final => {
                        walk.unknown = Some(name.into_owned());
                        object.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    None => {
                        walk.fields += 1;
                        walk.bytes += COLUMN + 3 * name.len() as u64;
                        fields.insert_full(name.to_string(), Kind::Scalar(DataType::Null)).0
                    }
                },
            };
            position = at + 1;
            if let Some((_, kind)) = fields.get_index_mut(at) {
                walk.path.push(name.into_owned());
                object.next_value_seed(Value { kind, walk })?;
                walk.path.pop();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inferred(text: &str) -> Result<Vec<(String, DataType)>, String> {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), text).expect("writes");
        let schema = infer(file.path(), Squeeze::None, None, &Memory::new(None));
        let schema = schema.map_err(|error| format!("{error:#}"))?;
        let field = |field: &Arc<Field>| (field.name().clone(), field.data_type().clone());
        Ok(schema.fields().iter().map(field).collect())
    }

    fn type_of(values: &[&str]) -> Result<DataType, String> {
        let lines: String = values.iter().map(|value| format!("{{\"x\": {value}}}\n")).collect();
        Ok(inferred(&lines)?.remove(0).1)
    }

    #[test]
    fn columns_keep_their_order() {
        let names = |text: &str| {
            inferred(text)
                .map(|fields| fields.into_iter().map(|(name, _)| name).collect::<Vec<_>>())
        };
        assert_eq!(
            names("{\"b\":1,\"a\":2}\n\n{\"a\":1,\"c\":null}"),
            Ok(vec!["b".into(), "a".into(), "c".into()])
        );
        assert!(names("{}\n").unwrap_err().contains("no columns"));
        assert!(names("").unwrap_err().contains("no columns"));
    }

    #[test]
    fn types_hold_all_values() {
        use DataType::{Boolean, Float64, Int64, Null, UInt64, Utf8};
        assert_eq!(type_of(&["1", "null", "-2"]), Ok(Int64));
        assert_eq!(type_of(&["1", "0.5"]), Ok(Float64));
        assert_eq!(type_of(&["18446744073709551615"]), Ok(UInt64));
        assert_eq!(type_of(&["18446744073709551615", "-1"]), Ok(WIDE));
        assert_eq!(type_of(&["18446744073709551615", "-1", "1e3"]), Ok(Float64));
        assert_eq!(type_of(&["true"]), Ok(Boolean));
        assert_eq!(type_of(&["true", "1"]), Ok(Utf8));
        assert_eq!(type_of(&["\"a\"", "1"]), Ok(Utf8));
        assert_eq!(type_of(&["null"]), Ok(Null));
        assert_eq!(type_of(&["[]", "[1]", "[null, 2.5]"]), Ok(list(Float64)));
        let nested = type_of(&["{\"a\": 1}", "{\"b\": [true]}"]).expect("an object");
        let field = |name: &str, data_type| Field::new(name, data_type, true);
        assert_eq!(
            nested,
            DataType::Struct(vec![field("a", Int64), field("b", list(Boolean))].into())
        );
    }

    #[test]
    fn errors_name_the_line_and_the_column() {
        let conflict = inferred("{\"a\":{\"b\":1}}\n{\"a\":{\"b\":[1]}}\n").unwrap_err();
        assert!(
            conflict.contains("line 2: column \"a.b\" is an array here, but a single value"),
            "{conflict}"
        );
        for (text, message) in [
            ("{\"a\":1}\n\n{\"a\":\n", "line 3: the line ends within a JSON object"),
            ("{\"a\":1} {\"a\":2}\n", "line 1: trailing characters"),
            ("[{\"a\":1}]\n", "line 1: a JSON array"),
            ("5\n", "line 1: not a JSON object"),
            ("{\"a\":nul}\n", "line 1: expected ident"),
        ] {
            let error = inferred(text).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200), "]".repeat(200));
        assert!(inferred(&deep).unwrap_err().contains("recursion limit"));
    }

    #[test]
    fn types_of_two_files_are_merged() {
        use DataType::{Float64, Int64, Utf8};
        assert_eq!(merge(&Int64, &Float64), Some(Float64));
        assert_eq!(merge(&list(Int64), &list(Utf8)), Some(list(Utf8)));
        assert_eq!(merge(&list(Int64), &Utf8), None);
        let object = |name: &str| DataType::Struct(vec![Field::new(name, Int64, true)].into());
        let both = vec![Field::new("a", Int64, true), Field::new("b", Int64, true)];
        assert_eq!(merge(&object("a"), &object("b")), Some(DataType::Struct(both.into())));
    }
}
