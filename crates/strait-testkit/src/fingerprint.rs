//! A hash of values that is the same on every machine and in every version of Rust.

use std::hash::{Hash, Hasher};

use crate::value::Value;

/// A hasher that multiplies and rotates, eight bytes at a time.
#[derive(Default)]
struct Fold(u64);

impl Fold {
    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, v: u8) {
        self.add(v.into());
    }

    fn write_u64(&mut self, v: u64) {
        self.add(v);
    }

    fn write_i64(&mut self, v: i64) {
        self.add(v as u64);
    }

    fn write_i128(&mut self, v: i128) {
        self.add(v as u64);
        self.add((v >> 64) as u64);
    }

    fn write_usize(&mut self, v: usize) {
        self.add(v as u64);
    }

    fn write_isize(&mut self, v: isize) {
        self.add(v as u64);
    }

    fn finish(&self) -> u64 {
        let mut z = self.0;
        z = (z ^ (z >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        z ^ (z >> 32)
    }
}

/// The hash of one cell. Equal cells have equal hashes.
pub fn fingerprint(value: &Value) -> u64 {
    fold(value)
}

/// The hash of a row of cells.
pub fn row_fingerprint(row: &[Value]) -> u64 {
    fold(row)
}

fn fold<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = Fold::default();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_values_have_different_fingerprints() {
        let bytes = |text: &str| Value::Bytes(text.as_bytes().to_vec());
        let values = [
            Value::Null,
            Value::Bool(false),
            Value::Bool(true),
            Value::Int(0),
            Value::Int(1),
            Value::Int(1 << 64),
            bytes(""),
            bytes("\0"),
            bytes("a text of more than eight bytes"),
            bytes("a text of more than eight bytez"),
            Value::List(vec![]),
            Value::List(vec![Value::Null]),
            Value::Tuple(vec![Value::Null]),
        ];
        let mut prints: Vec<_> = values.iter().map(fingerprint).collect();
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), values.len());
    }

    #[test]
    fn a_fingerprint_never_changes() {
        assert_eq!(fingerprint(&Value::Null), fingerprint(&Value::Null.clone()));
        assert_eq!(row_fingerprint(&[]), 0);
    }
}
