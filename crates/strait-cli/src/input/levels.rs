//! Computes how much memory the decoded values of a Parquet page take, without decoding them.

use parquet::basic::{Encoding, LogicalType, Type};
use parquet::column::page::Page;
use parquet::errors::Result;
use parquet::schema::types::ColumnDescriptor;

use super::lengths::{Deltas, Runs, most, most_slots};
use super::pages::bad;

/// The facts that the schema gives about a column's values.
pub(super) struct Shape {
    physical: Type,
    /// The bytes of a value of fixed length.
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

    /// The memory of a decoded value, including its levels, and its copy if it is converted to another type.
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

    /// Checks the values of a dictionary. Returns their lengths, if these differ. The caller must have
    /// reserved [their memory](Dictionary::memory).
    pub(super) fn dictionary(&self, mut page: &[u8], values: u32) -> Result<Dictionary> {
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
        // Values without a length could be as many as a header claims.
        if needed.is_none() || (smallest == 0 && values > 1) {
            return Err(bad("a dictionary claims more values than it has"));
        }
        let mut dictionary = Dictionary::default();
        if self.physical == Type::BYTE_ARRAY {
            dictionary.lengths.reserve_exact(values as usize);
            for _ in 0..values {
                let cut = || bad("a dictionary ends within a value");
                let (length, rest) = page.split_first_chunk::<4>().ok_or_else(cut)?;
                let length = u32::from_le_bytes(*length);
                page = rest.get(length as usize..).ok_or_else(cut)?;
                dictionary.longest = dictionary.longest.max(length.into());
                dictionary.lengths.push(length);
            }
        }
        Ok(dictionary)
    }

    /// Returns the most slots that `rows` rows of a page have.
    pub(super) fn most_slots(&self, page: &Page, rows: u64) -> Result<u64> {
        let count = u64::from(page.num_values());
        if !self.is_repeated() {
            return Ok(count.min(rows));
        }
        let levels = match page {
            Page::DataPageV2 { buf, rep_levels_byte_len, .. } => {
                buf.get(..*rep_levels_byte_len as usize)
            }
            Page::DataPage { buf, rep_level_encoding: Encoding::RLE, .. } => {
                let length = buf.first_chunk::<4>().ok_or_else(cut)?;
                buf.get(4..).and_then(|rest| rest.get(..u32::from_le_bytes(*length) as usize))
            }
            _ => return Ok(count),
        };
        let width = 16 - (self.repetition as u16).leading_zeros() as u8;
        let levels = Runs::new(levels.ok_or_else(cut)?, width, count)?;
        Ok(most_slots(levels, count, rows))
    }

    /// Returns the bytes that the values of a page decode to, in addition to [their fixed
    /// part](Shape::fixed_bytes). Also checks the counts from which decoders compute their allocations.
    pub(super) fn content<'a>(
        &self,
        page: &'a Page,
        dictionary: &'a Dictionary,
    ) -> Result<Content<'a>> {
        let count = u64::from(page.num_values());
        let bytes = page.buffer().len() as u64;
        match (self.physical, page.encoding()) {
            (Type::BYTE_ARRAY, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY) => {
                // The first byte is the width of the numbers that follow. If there are no bytes, there are no
                // values.
                let values = self.values(page)?;
                let (&width, values) = values.split_first().unwrap_or((&0, &[]));
                Ok(Content::InDictionary(Runs::new(values, width, count)?, dictionary))
            }
            (_, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY) => Ok(Content::Bytes(0)),
            (Type::BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY) => {
                deltas(self.values(page)?, count)?;
                Ok(Content::Bytes(bytes))
            }
            (Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY) => {
                let values = self.values(page)?;
                // A prefix length says how many bytes each value shares with the previous one.
                let prefixes = deltas(values, count)?;
                let (prefix_bytes, end) = prefixes.clone().sum().ok_or_else(cut)?;
                let suffixes = deltas(&values[end..], count)?;
                let all = bytes.saturating_add(prefix_bytes);
                Ok(Content::Deltas { prefixes, suffixes, all })
            }
            (Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY, _) => Ok(Content::Bytes(bytes)),
            _ => Ok(Content::Bytes(0)),
        }
    }

    /// The memory of the lengths that a decoder keeps while it reads a page.
    pub(super) fn lengths_bytes(&self, page: &Page) -> u64 {
        let count = u64::from(page.num_values());
        match (self.physical, page.encoding()) {
            (Type::BYTE_ARRAY, Encoding::DELTA_LENGTH_BYTE_ARRAY) => 4 * count,
            (Type::BYTE_ARRAY | Type::FIXED_LEN_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY) => {
                8 * count
            }
            _ => 0,
        }
    }

    /// Returns the values of a page, which follow its levels.
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

/// Reads the header of delta-encoded lengths. Checks that there are not more lengths than values in the page,
/// because decoders allocate as many as the header claims.
fn deltas(bytes: &[u8], values: u64) -> Result<Deltas<'_>> {
    let deltas = Deltas::new(bytes).ok_or_else(cut)?;
    match deltas.count <= values {
        true => Ok(deltas),
        false => Err(bad("a page has more lengths than values")),
    }
}

/// The lengths of a dictionary's values, if they differ.
#[derive(Default)]
pub(super) struct Dictionary {
    lengths: Vec<u32>,
    longest: u64,
}

impl Dictionary {
    /// The most memory that a dictionary takes in addition to its page: the decoder's copy, and the lengths.
    pub(super) fn memory(bytes: u64, values: u32) -> u64 {
        // There are at most as many lengths as fit the page.
        bytes + 16 * u64::from(values).min(bytes) + bytes.min(4 * u64::from(values))
    }
}

/// The location of the bytes of a page's values.
pub(super) enum Content<'a> {
    /// At most this many bytes in total.
    Bytes(u64),
    InDictionary(Runs<'a>, &'a Dictionary),
    Deltas {
        prefixes: Deltas<'a>,
        suffixes: Deltas<'a>,
        all: u64,
    },
}

impl Content<'_> {
    /// Returns the most bytes of any `values` values of a page of `all` values. They need not be consecutive.
    pub(super) fn most_of_any(&self, values: u64, all: u64, enough: u64) -> u64 {
        let longest = match self {
            Content::InDictionary(_, dictionary) => values.saturating_mul(dictionary.longest),
            Content::Bytes(_) | Content::Deltas { .. } => u64::MAX,
        };
        match values {
            0 => 0,
            _ if longest <= enough => longest,
            _ => longest.min(self.most(all, enough)),
        }
    }

    /// Returns the most bytes of `slots` consecutive values. Uses a bound that does not examine each value,
    /// if this bound is at most `enough`.
    pub(super) fn most(&self, slots: u64, enough: u64) -> u64 {
        match self {
            Content::Bytes(all) => *all,
            Content::InDictionary(places, dictionary) => {
                let bound = slots.saturating_mul(dictionary.longest);
                if bound <= enough {
                    return bound;
                }
                // Decoders of small types truncate indices, so an index outside the dictionary may become any
                // other.
                let length = |place| match dictionary.lengths.get(place as usize) {
                    Some(&length) => u64::from(length),
                    None => dictionary.longest,
                };
                most(places.clone().map(|(place, count)| (length(place), count)), slots)
            }
            Content::Deltas { prefixes, suffixes, all } => {
                if *all <= enough {
                    return *all;
                }
                let lengths = prefixes.clone().zip(suffixes.clone());
                most(lengths.map(|(prefix, suffix)| (prefix + suffix, 1)), slots)
            }
        }
    }
}
