//! Parses sizes in bytes: `8GiB`, `500 MB`, `1.5g`, `4096`.

/// Parses a size of more than zero bytes. `K`, `M`, `G`, `T` alone or with `iB` are powers of 1024; with `B`,
/// they are powers of 1000.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    match parse_or_zero(text)? {
        0 => Err("the size must be more than zero".to_string()),
        bytes => Ok(bytes),
    }
}

/// Parses a size as [`parse`] does, but also accepts zero.
pub(super) fn parse_or_zero(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = (&trimmed[..digits], trimmed[digits..].trim());
    let factor = factor(unit).ok_or_else(|| {
        format!("\"{unit}\" is not a unit of size; write for example 512MiB, 8GiB or 4096")
    })?;
    // Whole numbers are not converted to floats, so that no digits are lost.
    let bytes = match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(factor),
        Err(_) => number
            .parse::<f64>()
            .ok()
            .map(|value| value * factor as f64)
            .filter(|value| *value < u64::MAX as f64)
            .map(|value| value as u64),
    };
    bytes.ok_or_else(|| "that is not a size; write for example 512MiB, 8GiB or 4096".to_string())
}

fn factor(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{parse, parse_or_zero};

    #[test]
    fn units_count_in_1024_or_1000() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("8GiB"), Ok(8 << 30));
        assert_eq!(parse("8 gib"), Ok(8 << 30));
        assert_eq!(parse("1.5K"), Ok(1536));
        assert_eq!(parse("2MB"), Ok(2_000_000));
        assert_eq!(parse("7KB"), Ok(7_000));
        assert_eq!(parse("18446744073709551615"), Ok(u64::MAX));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["", "GiB", "0", "-1", "8 parsecs", "1.2.3", "99999999TiB"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn zero_is_accepted_only_where_it_is_allowed() {
        for text in ["0", "0B", "0GiB"] {
            assert_eq!(parse_or_zero(text), Ok(0), "{text}");
            assert!(parse(text).unwrap_err().contains("more than zero"), "{text}");
        }
        assert_eq!(parse_or_zero("8GiB"), Ok(8 << 30));
        assert!(parse_or_zero("-1").is_err());
    }
}
