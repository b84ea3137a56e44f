//! The types that `--cast` knows, and their names.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType, TimeUnit};

use super::names;

/// One `--cast`: a column, and the type that it gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cast {
    /// The name of the column, which may begin with `left.` or `right.`.
    pub(crate) column: String,
    pub(crate) to: DataType,
}

/// The names of types without arguments. The first name is the one in messages.
const PLAIN: [(&[&str], DataType); 14] = [
    (&["int8", "i8", "tinyint"], DataType::Int8),
    (&["int16", "i16", "smallint"], DataType::Int16),
    (&["int32", "i32", "int", "integer"], DataType::Int32),
    (&["int64", "i64", "bigint", "long"], DataType::Int64),
    (&["uint8", "u8", "utinyint"], DataType::UInt8),
    (&["uint16", "u16", "usmallint"], DataType::UInt16),
    (&["uint32", "u32", "uint", "uinteger"], DataType::UInt32),
    (&["uint64", "u64", "ubigint"], DataType::UInt64),
    (&["float32", "f32", "float", "real"], DataType::Float32),
    (&["float64", "f64", "double", "double precision"], DataType::Float64),
    (&["text", "string", "utf8", "varchar"], DataType::Utf8),
    (&["bool", "boolean"], DataType::Boolean),
    (&["date", "date32"], DataType::Date32),
    (&["binary", "bytes", "blob", "bytea", "varbinary"], DataType::Binary),
];

/// The units of timestamps. The first name is the one in messages.
const UNITS: [(&[&str], TimeUnit); 4] = [
    (&["s", "second"], TimeUnit::Second),
    (&["ms", "millisecond"], TimeUnit::Millisecond),
    (&["us", "microsecond"], TimeUnit::Microsecond),
    (&["ns", "nanosecond"], TimeUnit::Nanosecond),
];

/// Parses `COLUMN=TYPE`. After a backslash, any character (such as `=`) is part of the column's name.
pub(super) fn cast(text: &str) -> Result<Cast, String> {
    let Some((column, to)) = names::halves(text) else {
        return Err("write COLUMN=TYPE, as in id=int64, and `\\=` for a `=` in a name".to_string());
    };
    Ok(Cast { column: names::name(&column)?, to: parse(&to)? })
}

/// Parses the name of a type. Case does not matter.
fn parse(text: &str) -> Result<DataType, String> {
    let text = text.trim();
    let end = text.find(['(', '[', ',']).unwrap_or(text.len());
    let name = text[..end].trim().to_ascii_lowercase();
    let arguments = arguments(text[end..].trim());
    let arguments = arguments.ok_or_else(|| format!("\"{text}\" is not closed"))?;
    let unknown = || {
        let known = PLAIN.iter().map(|(names, _)| names[0]).collect::<Vec<_>>().join(", ");
        let more = "decimal(DIGITS,SCALE), timestamp(s|ms|us|ns) or timestamp(UNIT,ZONE)";
        format!("\"{text}\" is not a type; the types are {known}, {more}")
    };
    if let Some((_, plain)) = PLAIN.iter().find(|(names, _)| names.contains(&name.as_str())) {
        return match arguments.is_empty() {
            true => Ok(plain.clone()),
            false => Err(format!("{name} takes nothing in brackets; write {name}")),
        };
    }
    match name.as_str() {
        "decimal" | "numeric" => decimal(&arguments),
        "timestamp" | "datetime" => timestamp(&arguments),
        _ => Err(unknown()),
    }
}

/// Returns the arguments of `(a,b)`, `[a,b]`, `(a),b` or `,b`. Returns `None` if a bracket is not closed.
fn arguments(text: &str) -> Option<Vec<&str>> {
    let (inside, after) = match text.as_bytes().first() {
        Some(b'(') => text[1..].split_once(')')?,
        Some(b'[') => text[1..].split_once(']')?,
        _ => ("", text),
    };
    let after = after.trim();
    if !after.is_empty() && !after.starts_with(',') {
        return None;
    }
    let all = inside.split(',').chain(after.split(','));
    Some(all.map(str::trim).filter(|argument| !argument.is_empty()).collect())
}

fn decimal(arguments: &[&str]) -> Result<DataType, String> {
    let wrong = || {
        format!(
            "write decimal(DIGITS,SCALE), as in decimal(18,2), with 1 to {DECIMAL256_MAX_PRECISION} digits, \
             of which SCALE are after the point"
        )
    };
    let (digits, scale) = match arguments {
        [digits] => (*digits, "0"),
        [digits, scale] => (*digits, *scale),
        _ => return Err(wrong()),
    };
    let digits: u8 = digits.parse().map_err(|_| wrong())?;
    let scale: i8 = scale.parse().map_err(|_| wrong())?;
    if digits == 0 || digits > DECIMAL256_MAX_PRECISION || scale < 0 || scale as u8 > digits {
        return Err(wrong());
    }
    Ok(match digits {
        ..=DECIMAL128_MAX_PRECISION => DataType::Decimal128(digits, scale),
        _ => DataType::Decimal256(digits, scale),
    })
}

fn timestamp(arguments: &[&str]) -> Result<DataType, String> {
    let unit_of = |text: &str| {
        let text = text.to_ascii_lowercase();
        UNITS.iter().find(|(names, _)| names.contains(&text.as_str())).map(|(_, unit)| *unit)
    };
    let (unit, zone) = match arguments {
        [] => (TimeUnit::Microsecond, None),
        [one] => match unit_of(one) {
            Some(unit) => (unit, None),
            None => (TimeUnit::Microsecond, Some(zone(one)?)),
        },
        [unit, text] => {
            let wrong =
                || format!("\"{unit}\" is not a unit of time; the units are s, ms, us and ns");
            (unit_of(unit).ok_or_else(wrong)?, Some(zone(text)?))
        }
        _ => return Err("write timestamp(UNIT) or timestamp(UNIT,ZONE)".to_string()),
    };
    Ok(DataType::Timestamp(unit, zone))
}

/// Returns a time zone. Names of places would need a time zone database.
fn zone(text: &str) -> Result<Arc<str>, String> {
    if text.eq_ignore_ascii_case("utc") || text.eq_ignore_ascii_case("z") {
        return Ok(UTC.into());
    }
    match is_offset(text) {
        true => Ok(text.into()),
        false => Err(format!(
            "\"{text}\" is neither a unit of time (s, ms, us, ns) nor a time zone; write UTC or an offset such as +02:00"
        )),
    }
}

/// Whether a time zone is an offset such as `+02:00`. In a build with SQL, Arrow also knows the names of places. The
/// command treats them the same in all builds.
pub(crate) fn is_offset(zone: &str) -> bool {
    zone.starts_with(['+', '-']) && zone.parse::<Tz>().is_ok()
}

/// The name of the time zone without an offset.
pub(crate) const UTC: &str = "UTC";

/// Returns the name by which `--cast` knows a type, if it does.
pub(crate) fn name(data_type: &DataType) -> Option<String> {
    if let Some((names, _)) = PLAIN.iter().find(|(_, plain)| plain == data_type) {
        return Some(names[0].to_string());
    }
    match data_type {
        DataType::LargeUtf8 | DataType::Utf8View => Some("text".to_string()),
        DataType::LargeBinary | DataType::BinaryView => Some("binary".to_string()),
        DataType::Decimal128(digits, scale) | DataType::Decimal256(digits, scale) => {
            let name = format!("decimal({digits},{scale})");
            parse(&name).is_ok().then_some(name)
        }
        DataType::Timestamp(unit, of) => {
            let (names, _) = UNITS.iter().find(|(_, known)| known == unit)?;
            match of {
                None => Some(format!("timestamp({})", names[0])),
                Some(of) => zone(of).ok().map(|of| format!("timestamp({},{of})", names[0])),
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_a_type() {
        for (names, data_type) in PLAIN {
            for name in names {
                assert_eq!(parse(name), Ok(data_type.clone()), "{name}");
                assert_eq!(parse(&format!(" {} ", name.to_uppercase())), Ok(data_type.clone()));
            }
            assert_eq!(name(&data_type).as_deref(), Some(names[0]));
        }
    }

    #[test]
    fn types_with_arguments() {
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let time = |unit, zone: Option<&str>| Ok(DataType::Timestamp(unit, zone.map(Arc::from)));
        assert_eq!(parse("timestamp"), time(Microsecond, None));
        assert_eq!(parse("timestamp(s)"), time(Second, None));
        assert_eq!(parse("TIMESTAMP[MS]"), time(Millisecond, None));
        assert_eq!(parse("timestamp(ns, utc)"), time(Nanosecond, Some("UTC")));
        assert_eq!(parse("timestamp(us),+02:00"), time(Microsecond, Some("+02:00")));
        assert_eq!(parse("datetime,UTC"), time(Microsecond, Some("UTC")));
        assert_eq!(parse("decimal(18, 2)"), Ok(DataType::Decimal128(18, 2)));
        assert_eq!(parse("numeric(9)"), Ok(DataType::Decimal128(9, 0)));
        assert_eq!(parse("decimal(50,10)"), Ok(DataType::Decimal256(50, 10)));
        for text in ["timestamp(ns,UTC)", "timestamp(s)", "decimal(18,2)", "decimal(50,10)"] {
            assert_eq!(name(&parse(text).unwrap()).as_deref(), Some(text));
        }
    }

    #[test]
    fn unknown_types_list_the_known_ones() {
        for (text, message) in [
            ("number", "int64, uint8"),
            ("", "is not a type"),
            ("decimal", "decimal(18,2)"),
            ("decimal(0)", "decimal(18,2)"),
            ("decimal(3,5)", "decimal(18,2)"),
            ("decimal(300,5)", "decimal(18,2)"),
            ("decimal(9,2", "is not closed"),
            ("timestamp(h,UTC)", "not a unit of time"),
            ("timestamp(Europe/Berlin)", "+02:00"),
            ("varchar(10)", "nothing in brackets"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(message), "{text}: {error}");
        }
        assert_eq!(cast("a\\=b=INT"), Ok(Cast { column: "a=b".into(), to: DataType::Int32 }));
        for text in ["a", "=int", "a=b=int"] {
            assert!(cast(text).is_err(), "{text}");
        }
    }
}
