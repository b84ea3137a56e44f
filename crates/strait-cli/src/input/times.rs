//! Parses the dates and times of CSV files.
//!
//! Arrow's parser drops the part of a value that its type cannot hold: the hour of a date, or the milliseconds of a
//! time in seconds. Values that differ would be equal then. Here, such a value is invalid.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::kernels::cast_utils::{Parser, string_to_datetime};
use arrow::datatypes::{
    DataType, Date32Type, Int64Type, TimeUnit, TimestampMicrosecondType, TimestampMillisecondType,
    TimestampNanosecondType, TimestampSecondType,
};
use chrono::Utc;

use super::sampled::fits;
use super::values::{number, primitive};

/// Returns whether a type is one of the dates and times that a sample may suggest.
pub(super) fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Date32 | DataType::Timestamp(_, None))
}

/// Parses the values of a column of dates or times. `None` stands for null. The error is the row of the first value
/// that the type cannot hold.
pub(super) fn array<V: AsRef<[u8]>>(
    values: impl Iterator<Item = Option<V>>,
    data_type: &DataType,
) -> Result<ArrayRef, usize> {
    let DataType::Timestamp(unit, _) = data_type else {
        return Ok(Arc::new(primitive::<Date32Type, _>(values, date)?));
    };
    let times = primitive::<Int64Type, _>(values, |value| time(value, *unit))?;
    Ok(match unit {
        TimeUnit::Second => Arc::new(times.reinterpret_cast::<TimestampSecondType>()),
        TimeUnit::Millisecond => Arc::new(times.reinterpret_cast::<TimestampMillisecondType>()),
        TimeUnit::Microsecond => Arc::new(times.reinterpret_cast::<TimestampMicrosecondType>()),
        TimeUnit::Nanosecond => Arc::new(times.reinterpret_cast::<TimestampNanosecondType>()),
    })
}

/// Parses a time such as `2024-02-29 12:00:00.5`, and returns the number of units since 1970.
#[inline]
fn time(value: &[u8], unit: TimeUnit) -> Option<i64> {
    usual_time(value, unit).or_else(|| {
        if !fits(&DataType::Timestamp(unit, None), value, &[]) {
            return None;
        }
        let time = string_to_datetime(&Utc, str::from_utf8(value).ok()?).ok()?;
        match unit {
            // `timestamp` would return the second before a leap second.
            TimeUnit::Second => Some(time.timestamp_millis().div_euclid(1000)),
            TimeUnit::Millisecond => Some(time.timestamp_millis()),
            TimeUnit::Microsecond => Some(time.timestamp_micros()),
            TimeUnit::Nanosecond => time.timestamp_nanos_opt(),
        }
    })
}

/// Parses a time without a zone. Returns `None` for leap days, leap seconds and all other text.
#[inline]
fn usual_time(value: &[u8], unit: TimeUnit) -> Option<i64> {
    let (day, time) = value.split_at_checked(10)?;
    let &[b'T' | b' ', a, b, b':', c, d, b':', e, f, ref fraction @ ..] = time else {
        return None;
    };
    let (hour, minute, second) = (number(&[a, b])?, number(&[c, d])?, number(&[e, f])?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let seconds = 86_400 * i64::from(usual_date(day)?) + 3600 * hour + 60 * minute + second;
    let digits = match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    let fraction = match fraction {
        [] => 0,
        [b'.', fraction @ ..] if (1..=digits).contains(&fraction.len()) => {
            number(fraction)? * 10_i64.pow((digits - fraction.len()) as u32)
        }
        _ => return None,
    };
    seconds.checked_mul(10_i64.pow(digits as u32))?.checked_add(fraction)
}

/// Parses a date such as `2024-02-29`, and returns the days since 1970.
#[inline]
fn date(value: &[u8]) -> Option<i32> {
    usual_date(value).or_else(|| {
        let is_date = fits(&DataType::Date32, value, &[]);
        is_date.then(|| Date32Type::parse(str::from_utf8(value).ok()?)).flatten()
    })
}

/// Parses a date. Returns `None` for leap days and all other text.
#[inline]
fn usual_date(value: &[u8]) -> Option<i32> {
    let &[a, b, c, d, b'-', e, f, b'-', g, h] = value else { return None };
    let year = number(&[a, b, c, d])?;
    let (month, day) = (number(&[e, f])?, number(&[g, h])?);
    let days = match month {
        // Arrow knows the leap years.
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if !(1..=days).contains(&day) {
        return None;
    }
    // Years begin in March, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = days + (153 * month + 2) / 5 + day - 1 - 719_468;
    i32::try_from(days).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_arrow() {
        for day in -719_162..100_000 {
            let value = Date32Type::to_naive_date_opt(day).unwrap().to_string();
            assert_eq!(date(value.as_bytes()), Some(day), "{value}");
        }
        assert_eq!(usual_date(b"1970-01-01"), Some(0));
        assert_eq!(usual_date(b"2000-02-28"), Some(11_015));
        for value in ["2000-13-01", "2023-02-29", "2024-02-29T00:00:00", "2024-2-9", "20240209"] {
            assert_eq!(date(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn usual_times_are_those_of_arrow() {
        let mut random = fastrand::Rng::with_seed(31);
        let mut usual = 0;
        for case in 0..50_000 {
            let part = |most: u32, random: &mut fastrand::Rng| random.u32(0..=most);
            let (year, month) = (part(9999, &mut random), part(13, &mut random));
            let (day, hour) = (part(32, &mut random), part(24, &mut random));
            let (minute, second) = (part(60, &mut random), part(60, &mut random));
            let mut value =
                format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}");
            let unit = UNITS[case % 4];
            for digit in 0..random.usize(0..=3 * (case % 4)) {
                value += if digit == 0 { "." } else { "" };
                value.push(random.digit(10));
            }
            if let Some(parsed) = usual_time(value.as_bytes(), unit) {
                let time = string_to_datetime(&Utc, &value).unwrap();
                let seconds = i128::from(time.timestamp()) * 1_000_000_000;
                let nanoseconds = seconds + i128::from(time.timestamp_subsec_nanos());
                let scale = 10_i128.pow(9 - 3 * (case % 4) as u32);
                assert_eq!(i128::from(parsed) * scale, nanoseconds, "{value} in {unit:?}");
                usual += 1;
            }
        }
        assert!(usual > 20_000, "{usual}");
    }

    const UNITS: [TimeUnit; 4] =
        [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];

    /// Each value fits the given unit and all finer units. 4 means that it fits none.
    #[test]
    fn times_need_a_unit_that_is_fine_enough() {
        let second: i64 = 1_709_208_000;
        let cases = [
            ("2024-02-29", 0, second - 43_200, 0),
            ("2024-02-29 12:00:00", 0, second, 0),
            ("2024-02-29T07:00:00-05:00", 0, second, 0),
            ("1969-12-31 23:59:59.5", 1, -1, 500_000_000),
            ("1969-12-31 23:59:59.5Z", 1, -1, 500_000_000),
            ("2024-02-29 12:00:00.120Z", 1, second, 120_000_000),
            ("2024-02-29 12:00:00.1234", 2, second, 123_400_000),
            ("2024-02-29 12:00:00.1234567", 3, second, 123_456_700),
            ("2024-02-29 12:00:00.1234567890", 4, 0, 0),
            ("2024-02-30 12:00:00", 4, 0, 0),
            // A leap second is the first second of the next minute.
            ("2016-12-31 23:59:60", 0, 1_483_228_800, 0),
        ];
        for (value, finest, seconds, nanoseconds) in cases {
            for (at, unit) in UNITS.into_iter().enumerate() {
                let scale = 1000_i64.pow(at as u32);
                let expected = seconds * scale + nanoseconds / (1_000_000_000 / scale);
                let expected = (at >= finest).then_some(expected);
                assert_eq!(time(value.as_bytes(), unit), expected, "{value} in {unit:?}");
            }
        }
    }
}
