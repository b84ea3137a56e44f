//! Parses lists of column names and lists of pairs of column names: `a,b` and `a=b,c`. A backslash makes the
//! next character part of a name.

/// A pair of key columns, left and right.
pub(crate) type Pair = (String, String);

/// Parses `a=b,c`: pairs separated by commas. A single name stands for both sides.
pub(super) fn pairs(text: &str) -> Result<KeyPairs, String> {
    split(text, ',').into_iter().map(|part| pair(&part)).collect::<Result<_, _>>().map(KeyPairs)
}

/// Parses `a,b`.
pub(super) fn names(text: &str) -> Result<Names, String> {
    split(text, ',').into_iter().map(|part| name(&part)).collect::<Result<_, _>>().map(Names)
}

/// The pairs of one `--on` option.
#[derive(Debug, Clone)]
pub(crate) struct KeyPairs(pub(crate) Vec<Pair>);

/// The names of one `--select` option.
#[derive(Debug, Clone)]
pub(crate) struct Names(pub(crate) Vec<String>);

/// Splits `a=b`. Returns `None` if there is not exactly one `=`.
pub(super) fn halves(text: &str) -> Option<(String, String)> {
    <[String; 2]>::try_from(split(text, '=')).ok().map(|[left, right]| (left, right))
}

fn pair(text: &str) -> Result<Pair, String> {
    match split(text, '=').as_slice() {
        [both] => name(both).map(|both| (both.clone(), both)),
        [left, right] => Ok((name(left)?, name(right)?)),
        _ => Err(format!(
            "\"{text}\" has more than one `=`; write LEFT=RIGHT, and `\\=` for one that is part of a name"
        )),
    }
}

/// Parses one name.
pub(super) fn name(text: &str) -> Result<String, String> {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.trim().chars();
    while let Some(c) = characters.next() {
        plain.extend(if c == '\\' { characters.next() } else { Some(c) });
    }
    if plain.is_empty() {
        return Err("a column name is missing; write a=b, or id when both sides have it".into());
    }
    Ok(plain)
}

/// Splits at `separator` unless a backslash precedes it. The backslashes stay.
fn split(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        if c == separator && !escaped {
            parts.push(String::new());
            continue;
        }
        escaped = c == '\\' && !escaped;
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair_of(left: &str, right: &str) -> Pair {
        (left.to_string(), right.to_string())
    }

    #[test]
    fn pairs_and_single_names() {
        assert_eq!(pairs("a=b, id").unwrap().0, [pair_of("a", "b"), pair_of("id", "id")]);
        assert_eq!(pairs(r"a\=b=c\,d").unwrap().0, [pair_of("a=b", "c,d")]);
        assert_eq!(names(r"x,y\,z,\\").unwrap().0, ["x", "y,z", "\\"]);
    }

    #[test]
    fn missing_and_surplus_parts_are_refused() {
        for text in ["", "a=", "=b", "a,,b", "a=b=c"] {
            assert!(pairs(text).is_err(), "{text}");
        }
    }
}
