//! The types that are tested as keys, alone and in pairs, and the types that are tested as payload.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, IntervalUnit, TimeUnit, UnionFields, UnionMode};

use crate::random::Rng;
use crate::value::Comparison;

/// The types of a pair of key columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyKind {
    /// The type of the left column.
    pub left: DataType,
    /// The type of the right column.
    pub right: DataType,
}

impl KeyKind {
    /// Two columns of the same type.
    pub fn same(data_type: DataType) -> Self {
        KeyKind { left: data_type.clone(), right: data_type }
    }

    /// Two columns of different types, which are compared in a common type.
    pub fn pair(left: DataType, right: DataType) -> Self {
        KeyKind { left, right }
    }

    /// The rules by which the two columns are compared.
    pub fn comparison(&self) -> Comparison {
        Comparison::of(&self.left, &self.right)
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.left == self.right {
            true => write!(f, "{}", self.left),
            false => write!(f, "{} = {}", self.left, self.right),
        }
    }
}

const UNITS: [TimeUnit; 4] =
    [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

/// Types that fit eight bytes.
pub fn narrow() -> Vec<DataType> {
    use DataType::*;
    let mut types = vec![
        Boolean, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32,
        Float64, Date32, Date64,
    ];
    types.extend([Time32(UNITS[0]), Time32(UNITS[1]), Time64(UNITS[2]), Time64(UNITS[3])]);
    types.extend(UNITS.map(|unit| Timestamp(unit, None)));
    types.extend(UNITS.map(|unit| Timestamp(unit, Some("+02:00".into()))));
    types.extend(UNITS.map(Duration));
    types.extend([Interval(IntervalUnit::YearMonth), Interval(IntervalUnit::DayTime)]);
    types.extend([Decimal32(9, 2), Decimal64(18, 3), FixedSizeBinary(3), FixedSizeBinary(8)]);
    types
}

/// Types that need more than eight bytes, or have no fixed width.
pub fn wide() -> Vec<DataType> {
    use DataType::*;
    vec![
        Interval(IntervalUnit::MonthDayNano),
        Decimal128(38, 10),
        Decimal256(76, 20),
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(16),
        dictionary(Int32, Utf8),
        dictionary(UInt8, LargeUtf8),
        dictionary(Int64, Utf8View),
        dictionary(UInt16, Binary),
        dictionary(Int8, Int64),
        dictionary(Int16, Float64),
        dictionary(UInt32, Decimal128(20, 2)),
        dictionary(UInt64, Timestamp(TimeUnit::Millisecond, None)),
        Struct(fields(&[("a", Int32), ("b", Utf8)])),
        Struct(fields(&[("a", Float64), ("b", Struct(fields(&[("c", Boolean), ("d", Date32)])))])),
        List(item(Int32)),
        LargeList(item(Utf8)),
        FixedSizeList(item(Int16), 2),
        List(item(Struct(fields(&[("a", Int8), ("b", Utf8View)])))),
        LargeListView(item(Float32)),
        FixedSizeList(item(Float16), 2),
        List(item(Struct(fields(&[("a", Float64)])))),
        runs(Int32, Int32),
        runs(Int16, Float64),
        runs(Int16, Utf8),
    ]
}

/// Pairs of different types that have a common type without loss.
pub fn mixed() -> Vec<KeyKind> {
    use DataType::*;
    let stamp = |unit, zone: Option<&str>| Timestamp(unit, zone.map(Arc::from));
    [
        (Int32, Int64),
        (Int8, Int16),
        (UInt8, Int64),
        (UInt32, Int32),
        (Int64, UInt64),
        (UInt16, UInt64),
        (Utf8, Utf8View),
        (Utf8, LargeUtf8),
        (LargeUtf8, Utf8View),
        (Binary, BinaryView),
        (LargeBinary, Binary),
        (FixedSizeBinary(4), Binary),
        (dictionary(Int32, Utf8), Utf8),
        (dictionary(Int16, Int64), Int64),
        (Utf8View, dictionary(UInt8, Utf8)),
        (dictionary(Int8, Utf8), dictionary(UInt32, Utf8)),
        (dictionary(Int32, Int32), dictionary(Int32, Int64)),
        (Date32, Date64),
        (stamp(UNITS[0], None), stamp(UNITS[3], None)),
        (stamp(UNITS[2], Some("UTC")), stamp(UNITS[1], Some("UTC"))),
        (Time32(UNITS[0]), Time64(UNITS[3])),
        (Duration(UNITS[0]), Duration(UNITS[2])),
        (Decimal128(10, 2), Decimal128(12, 4)),
        (Decimal128(38, 0), Decimal128(38, 6)),
        (Decimal32(9, 2), Decimal128(20, 2)),
        (Decimal64(18, 3), Decimal256(60, 10)),
        (Float32, Float64),
        (Int16, Float32),
        (Int32, Float64),
        (UInt32, Float32),
        (Float16, Float64),
        (dictionary(Int8, Float32), Float64),
        (Int64, Decimal128(20, 2)),
        (Decimal64(10, 0), UInt8),
        (stamp(UNITS[3], Some("UTC")), stamp(UNITS[3], Some("+01:00"))),
        (runs(Int32, Utf8), Utf8View),
        (Int16, runs(Int16, Int64)),
        (List(item(Utf8)), LargeList(item(Utf8View))),
        (ListView(item(Int32)), List(item(Int32))),
        (Struct(fields(&[("a", Utf8)])), Struct(fields(&[("z", dictionary(Int32, Utf8))]))),
    ]
    .into_iter()
    .map(|(left, right)| KeyKind::pair(left, right))
    .collect()
}

/// Every kind of key.
pub fn all() -> Vec<KeyKind> {
    let same = narrow().into_iter().chain(wide()).map(KeyKind::same);
    same.chain(mixed()).collect()
}

/// Returns the types of a key of one to four columns. Some keys can be packed into eight bytes, others
/// cannot.
pub fn random_key(rng: &mut Rng) -> Vec<KeyKind> {
    let same = |types: &[DataType]| types.iter().cloned().map(KeyKind::same).collect();
    let one = |rng: &mut Rng| rng.pick(&all()).clone();
    match rng.below(14) {
        0..=5 => vec![one(rng)],
        6 => vec![KeyKind::same(rng.pick(&narrow()).clone())],
        7 => same(&[DataType::Int32, DataType::Int32]),
        8 => {
            let tiny = [DataType::Int8, DataType::Boolean, DataType::UInt16, DataType::UInt8];
            same(&tiny[..rng.between(2, 4)])
        }
        9 => same(&[DataType::Int64, DataType::Int64]),
        10 => same(&[DataType::Int64, DataType::Utf8, DataType::Date32]),
        // Packed, packed, hashed.
        11 => same(match rng.below(3) {
            0 => &[DataType::Float32, DataType::Float32],
            1 => &[DataType::Float16, DataType::Float32],
            _ => &[DataType::Float64, DataType::Float64],
        }),
        12 => {
            let key = KeyKind::same(rng.pick(&encoded_keys()).clone());
            if rng.chance(1, 4) { vec![key, one(rng)] } else { vec![key] }
        }
        _ => (0..rng.between(2, 4)).map(|_| one(rng)).collect(),
    }
}

/// Key types with dictionaries and runs: those of [`encoded`], other encodings around them, and dictionaries of structs
/// and lists with them. Dictionary keys and run ends have 32 bits, because keys have many values.
pub fn encoded_keys() -> Vec<DataType> {
    use DataType::*;
    let around = |t: DataType| {
        let mut types =
            vec![t.clone(), runs(Int32, t.clone()), dictionary(Int32, runs(Int32, t.clone()))];
        // The row format has no dictionaries of nested values inside other types.
        if !matches!(&t, Dictionary(_, values) if values.is_nested()) {
            types.push(dictionary(Int32, Struct(fields(&[("x", t.clone()), ("f", Float64)]))));
            types.push(dictionary(Int32, List(item(t))));
        }
        types
    };
    encoded().iter().map(with_wide_indices).flat_map(around).collect()
}

/// Returns the type with dictionary keys and run ends of 32 bits, also inside it.
fn with_wide_indices(data_type: &DataType) -> DataType {
    use DataType::*;
    let inside = |field: &Arc<Field>| {
        let wide = with_wide_indices(field.data_type());
        Arc::new(field.as_ref().clone().with_data_type(wide))
    };
    match data_type {
        Dictionary(_, values) => dictionary(Int32, with_wide_indices(values)),
        RunEndEncoded(_, values) => runs(Int32, with_wide_indices(values.data_type())),
        Struct(fields) => Struct(fields.iter().map(inside).collect()),
        List(field) => List(inside(field)),
        LargeList(field) => LargeList(inside(field)),
        ListView(field) => ListView(inside(field)),
        FixedSizeList(field, len) => FixedSizeList(inside(field), *len),
        Map(field, sorted) => Map(inside(field), *sorted),
        other => other.clone(),
    }
}

/// Returns a type for a payload column: any type, but plain ones more often.
pub fn random_payload(rng: &mut Rng) -> DataType {
    let pick = |rng: &mut Rng, types: Vec<DataType>| rng.pick(&types).clone();
    match rng.below(8) {
        0 | 1 => DataType::Int64,
        2 => pick(rng, exotic()),
        3 => pick(rng, encoded()),
        4 | 5 => pick(rng, narrow()),
        _ => pick(rng, wide()),
    }
}

/// Every type that a payload column may have.
pub fn payloads() -> Vec<DataType> {
    [narrow(), wide(), exotic(), encoded()].concat()
}

/// Dictionaries with narrow keys that soon run out, run-end encoded types, and both inside other types.
pub fn encoded() -> Vec<DataType> {
    use DataType::*;
    let structure = || Struct(fields(&[("a", Int32), ("b", Utf8View)]));
    let values =
        [Utf8View, FixedSizeBinary(4), Boolean, Utf8, Int64, structure(), List(item(Int16))];
    let of = |index: DataType| values.clone().map(|values| dictionary(index.clone(), values));
    let mut types: Vec<DataType> = [Int8, UInt8, Int16, UInt16].into_iter().flat_map(of).collect();
    types.extend([
        runs(Int16, Int64),
        runs(Int16, Utf8View),
        runs(Int16, Boolean),
        runs(Int32, FixedSizeBinary(4)),
        runs(Int32, dictionary(Int8, Utf8)),
        runs(Int64, Utf8),
        runs(Int64, structure()),
        Struct(fields(&[("d", dictionary(Int8, Utf8View)), ("i", Int32)])),
        Struct(fields(&[("s", Struct(fields(&[("d", dictionary(UInt8, FixedSizeBinary(4)))])))])),
        Struct(fields(&[("r", runs(Int16, Int64))])),
        List(item(dictionary(Int8, Utf8))),
        LargeList(item(dictionary(UInt8, Boolean))),
        ListView(item(dictionary(Int8, FixedSizeBinary(4)))),
        FixedSizeList(item(dictionary(Int16, Utf8View)), 2),
        List(item(runs(Int16, Int32))),
        Map(entries(Utf8, dictionary(Int8, Utf8)), false),
    ]);
    types
}

/// Types for texts of tens of kilobytes.
pub fn texts() -> Vec<DataType> {
    use DataType::*;
    vec![
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        BinaryView,
        dictionary(Int8, Utf8View),
        dictionary(UInt16, Utf8),
        runs(Int16, Utf8),
        Struct(fields(&[("t", Utf8)])),
        List(item(Utf8View)),
    ]
}

/// The entries of a map.
fn entries(key: DataType, value: DataType) -> Arc<Field> {
    let key = Field::new("keys", key, false);
    let value = Field::new("values", value, true);
    Arc::new(Field::new("entries", DataType::Struct(Fields::from(vec![key, value])), false))
}

/// Types that only payload columns have.
pub fn exotic() -> Vec<DataType> {
    use DataType::*;
    let members = || {
        let fields = fields(&[("i", Int32), ("s", Utf8), ("l", List(item(Int8)))]);
        UnionFields::try_new([3, 1, 7], fields.iter().cloned()).expect("distinct type ids")
    };
    vec![
        Null,
        Map(entries(Utf8, Int32), false),
        Map(entries(Int32, List(item(Utf8View))), false),
        Union(members(), UnionMode::Dense),
        Union(members(), UnionMode::Sparse),
        ListView(item(Int32)),
        LargeListView(item(Utf8)),
        runs(Int32, Int64),
        runs(Int16, Utf8),
        runs(Int64, Boolean),
        List(item(dictionary(Int16, Utf8))),
        FixedSizeList(item(List(item(Float32))), 3),
        FixedSizeList(item(Int32), 0),
        FixedSizeBinary(0),
        Struct(fields(&[("m", Map(entries(Utf8, Boolean), false)), ("n", Null)])),
        Struct(Fields::empty()),
        dictionary(Int32, List(item(Int32))),
    ]
}

/// `Dictionary(index, values)`.
pub fn dictionary(index: DataType, values: DataType) -> DataType {
    DataType::Dictionary(Box::new(index), Box::new(values))
}

/// `RunEndEncoded(ends, values)`.
pub fn runs(ends: DataType, values: DataType) -> DataType {
    let ends = Arc::new(Field::new("run_ends", ends, false));
    DataType::RunEndEncoded(ends, Arc::new(Field::new("values", values, true)))
}

fn item(data_type: DataType) -> Arc<Field> {
    Arc::new(Field::new("item", data_type, true))
}

fn fields(fields: &[(&str, DataType)]) -> Fields {
    fields.iter().map(|(name, t)| Field::new(*name, t.clone(), true)).collect()
}
