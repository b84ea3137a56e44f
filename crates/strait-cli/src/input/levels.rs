//! How much memory the values of a Parquet page take once they are decoded, found without decoding
//! them.

use parquet::basic::{Encoding, LogicalType, Type};
use parquet::column::page::Page;
use parquet::errors::Result;
use parquet::schema::types::ColumnDescriptor;

use super::pages::bad;

/// What the schema says of a column's values.
pub(super) struct Shape {
    physical: Type,
    /// Bytes of a value of fixed length.
    length: u64,
    definition: i16,
    repetition: i16,
    decimal: bool,
}

impl Shape {
    pub(super) fn new(column: &ColumnDescriptor) -> Shape {
        let length = match column.physical_type() {
            Type::FIXED_LEN_BYTE_ARRAY => column.type_length().max(0) as u64,
            _ => 0,
        };
        Shape {
            physical: column.physical_type(),
            length,
            definition: column.max_def_level(),
            repetition: column.max_rep_level(),
            decimal: matches!(column.logical_type_ref(), Some(LogicalType::Decimal { .. })),
        }
    }

    /// Whether a row may have several values.
    pub(super) fn is_repeated(&self) -> bool {
        self.repetition > 0
    }

    /// The memory of a decoded value, with its levels, and its copy where it is converted to
    /// another type.
    pub(super) fn fixed_bytes(&self) -> u64 {
        let value = match self.physical {
            Type::BOOLEAN => 2,
            Type::INT32 | Type::FLOAT => 8,
            Type::INT64 | Type::DOUBLE => 16,
            Type::INT96 => 28,
            Type::BYTE_ARRAY => 24,
            Type::FIXED_LEN_BYTE_ARRAY => 2 * self.length + 8,
        };
        let decimal = if self.decimal { 32 } else { 0 };
        let definition = if self.definition > 0 { 3 } else { 0 };
        let repetition = if self.repetition > 0 { 8 } else { 0 };
        value + decimal + definition + repetition
    }

    /// Checks the values of a dictionary. Returns the memory of its decoded copy, and the length of
    /// its longest value.
    pub(super) fn dictionary(&self, mut page: &[u8], values: u32) -> Result<(u64, u64)> {
        let values = u64::from(values);
        let bytes = page.len() as u64;
        let smallest = match self.physical {
            Type::BYTE_ARRAY => 4,
            Type::BOOLEAN => return Err(bad("a dictionary of booleans")),
            Type::INT32 | Type::FLOAT => 4,
            Type::INT64 | Type::DOUBLE => 8,
            Type::INT96 => 12,
            Type::FIXED_LEN_BYTE_ARRAY => self.length,
        };
        let needed = values.checked_mul(smallest).filter(|&needed| needed <= bytes);
        // Without a length, values could be as many as a header likes.
        if needed.is_none() || (smallest == 0 && values > 1) {
            return Err(bad("a dictionary claims more values than it has"));
        }
        let mut longest = 0;
        if self.physical == Type::BYTE_ARRAY {
            for _ in 0..values {
                let cut = || bad("a dictionary ends within a value");
                let (length, rest) = page.split_first_chunk::<4>().ok_or_else(cut)?;
                let length = u32::from_le_bytes(*length) as usize;
                page = rest.get(length..).ok_or_else(cut)?;
                longest = longest.max(length as u64);
            }
        }
        Ok((bytes + 16 * values, longest))
    }

    /// The bytes that the values of a page decode to, beside [their fixed part](Shape::fixed_bytes).
    /// Also checks the counts that decoders allocate by.
    pub(super) fn decoded_bytes(&self, page: &Page) -> Result<u64> {
        if !matches!(self.physical, Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY) {
            return Ok(0);
        }
        let bytes = page.buffer().len() as u64;
        match page.encoding() {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => {
                check_count(self.values(page)?, page.num_values())?;
                Ok(bytes)
            }
            Encoding::DELTA_BYTE_ARRAY => {
                let values = self.values(page)?;
                check_count(values, page.num_values())?;
                // Each value begins with so many bytes of the one before it.
                let (prefixes, end) = delta_sum(values).ok_or_else(cut)?;
                check_count(&values[end..], page.num_values())?;
                Ok(bytes.saturating_add(prefixes))
            }
            _ => Ok(bytes),
        }
    }

    /// The values of a page, after its levels.
    fn values<'a>(&self, page: &'a Page) -> Result<&'a [u8]> {
        let bytes = page.buffer();
        let start = match page {
            Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
                *def_levels_byte_len as usize + *rep_levels_byte_len as usize
            }
            Page::DataPage { rep_level_encoding, def_level_encoding, num_values, .. } => {
                let mut at = 0;
                let levels =
                    [(self.repetition, rep_level_encoding), (self.definition, def_level_encoding)];
                for (most, encoding) in levels.into_iter().filter(|(most, _)| *most > 0) {
                    at += match encoding {
                        Encoding::RLE => {
                            let length = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
                            4 + u32::from_le_bytes(*length.ok_or_else(cut)?) as usize
                        }
                        _ => {
                            let bits = u64::from(16 - (most as u16).leading_zeros());
                            (u64::from(*num_values) * bits).div_ceil(8) as usize
                        }
                    };
                }
                at
            }
            Page::DictionaryPage { .. } => 0,
        };
        bytes.get(start..).ok_or_else(cut)
    }
}

fn cut() -> parquet::errors::ParquetError {
    bad("a page ends within its levels or lengths")
}

/// Checks that delta-encoded numbers are not more than the page's values: decoders allocate room for
/// as many as they claim to be.
fn check_count(deltas: &[u8], values: u32) -> Result<()> {
    let count = Deltas::new(deltas).map(|deltas| deltas.count);
    match count {
        Some(count) if count <= u64::from(values) => Ok(()),
        Some(_) => Err(bad("a page has more lengths than values")),
        // An empty page has no lengths.
        None if deltas.is_empty() => Ok(()),
        None => Err(cut()),
    }
}

/// The header of delta-encoded numbers.
struct Deltas<'a> {
    bytes: &'a [u8],
    at: usize,
    block: u64,
    mini_blocks: u64,
    count: u64,
    first: i64,
}

impl<'a> Deltas<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let mut deltas = Deltas { bytes, at: 0, block: 0, mini_blocks: 0, count: 0, first: 0 };
        deltas.block = deltas.varint()?;
        deltas.mini_blocks = deltas.varint()?;
        deltas.count = deltas.varint()?;
        deltas.first = deltas.signed()?;
        Some(deltas)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

/// The sum of delta-encoded lengths, and where they end.
fn delta_sum(bytes: &[u8]) -> Option<(u64, usize)> {
    if bytes.is_empty() {
        return Some((0, 0));
    }
    let mut deltas = Deltas::new(bytes)?;
    if deltas.mini_blocks == 0 || deltas.block % deltas.mini_blocks != 0 {
        return None;
    }
    let in_mini_block = deltas.block / deltas.mini_blocks;
    let mut value = deltas.first as i32;
    let mut sum = if deltas.count > 0 { value.max(0) as u64 } else { 0 };
    let mut left = deltas.count.saturating_sub(1);
    while left > 0 {
        let least = deltas.signed()? as i32;
        let widths_at = deltas.at;
        let widths_end = deltas.at.checked_add(usize::try_from(deltas.mini_blocks).ok()?)?;
        let widths = bytes.get(widths_at..widths_end)?;
        deltas.at = widths_end;
        for &width in widths {
            if left == 0 {
                break;
            }
            if width > 32 || in_mini_block == 0 {
                return None;
            }
            let packed = bytes.get(deltas.at..)?;
            for i in 0..in_mini_block.min(left) {
                let delta = bits(packed, i * u64::from(width), width.into())?;
                value = value.wrapping_add(least).wrapping_add(delta as i32);
                sum += value.max(0) as u64;
            }
            left -= in_mini_block.min(left);
            let length = (in_mini_block.checked_mul(width.into())?).div_ceil(8);
            deltas.at = deltas.at.checked_add(usize::try_from(length).ok()?)?.min(bytes.len());
        }
    }
    Some((sum, deltas.at))
}

/// `width` bits from bit `at` on, the lowest first.
fn bits(bytes: &[u8], at: u64, width: u64) -> Option<u32> {
    let first = usize::try_from(at / 8).ok()?;
    let last = usize::try_from((at + width).div_ceil(8)).ok()?;
    let window = bytes.get(first..last.max(first))?;
    let word = window.iter().rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte));
    Some(((word >> (at % 8)) & ((1 << width) - 1)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deltas_are_summed() {
        // Block of 128 in 4 parts, 5 values from 7 on: 7, 5, 3, 1, 2 (parquet-format, Encodings.md).
        let mut bytes = vec![128, 1, 4, 5, 14, 3];
        bytes.extend([2, 0, 0, 0]);
        // Deltas -2, -2, -2, 1; the least is -2, so 0, 0, 0, 3 in two bits each, padded to 32.
        bytes.extend([0b1100_0000, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(delta_sum(&bytes), Some((18, bytes.len())));
        bytes.extend([9, 9]);
        assert_eq!(delta_sum(&bytes), Some((18, bytes.len() - 2)));
        assert_eq!(delta_sum(&bytes[..7]), None);
        assert_eq!(delta_sum(&[]), Some((0, 0)));
    }
}
