//! Reads the parts of Parquet's metadata that must be checked before the Parquet crate decodes them: how deep
//! and wide the schema of a footer is, and the header of a page. Both use Thrift's compact protocol.

/// The deepest nesting of Thrift values that is read.
const DEEPEST: u32 = 32;

/// Types of Thrift's compact protocol.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// The size of a footer once it is decoded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FooterShape {
    /// Elements of the schema, including groups.
    pub(super) elements: u64,
    /// The deepest nesting of the schema.
    pub(super) depth: u64,
    /// Column chunks of all row groups.
    pub(super) chunks: u64,
    pub(super) groups: u64,
    /// Whether the footer names an encryption algorithm.
    pub(super) is_encrypted: bool,
}

/// The header of a page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub(super) kind: i64,
    pub(super) uncompressed: i64,
    pub(super) compressed: i64,
    /// The fields of the header for the page's kind.
    pub(super) values: i64,
    pub(super) encoding: i64,
    pub(super) definition_encoding: i64,
    pub(super) repetition_encoding: i64,
    pub(super) nulls: i64,
    pub(super) rows: i64,
    pub(super) definition_bytes: i64,
    pub(super) repetition_bytes: i64,
    pub(super) is_compressed: bool,
    /// Whether there was a header for the page's kind.
    pub(super) complete: bool,
    /// The bytes of this header.
    pub(super) length: usize,
}

/// Page kinds.
pub(super) const DATA_PAGE: i64 = 0;
pub(super) const INDEX_PAGE: i64 = 1;
pub(super) const DICTIONARY_PAGE: i64 = 2;
pub(super) const DATA_PAGE_V2: i64 = 3;

/// Reads the shape of a footer. Returns None if it is not a footer.
pub(super) fn footer_shape(footer: &[u8]) -> Option<FooterShape> {
    let mut shape = FooterShape::default();
    // For each open group, the number of its children that still follow.
    let mut open: Vec<i64> = Vec::new();
    Compact::new(footer).structure(|thrift, id, kind| match (id, kind) {
        (2, LIST) => thrift.list(|thrift, kind| {
            let children = thrift.number_in(kind, 5)?;
            shape.elements += 1;
            while open.last() == Some(&0) {
                open.pop();
            }
            if let Some(siblings) = open.last_mut() {
                *siblings -= 1;
            }
            // A group cannot have more children than the footer has bytes.
            if children < 0 || children > footer.len() as i64 {
                return None;
            }
            if children > 0 {
                open.push(children);
            }
            shape.depth = shape.depth.max(open.len() as u64);
            Some(())
        }),
        (4, LIST) => thrift.list(|thrift, kind| {
            shape.groups += 1;
            if kind != STRUCT {
                return None;
            }
            thrift.structure(|thrift, id, kind| match (id, kind) {
                (1, LIST) => thrift.list(|thrift, kind| {
                    shape.chunks += 1;
                    thrift.skip(kind, DEEPEST)
                }),
                _ => thrift.skip(kind, DEEPEST),
            })
        }),
        (8, STRUCT) => {
            shape.is_encrypted = true;
            thrift.skip(kind, DEEPEST)
        }
        _ => thrift.skip(kind, DEEPEST),
    })?;
    Some(shape)
}

/// Reads a page's header from the start of `bytes`. Returns None if it is not a header, or is longer than
/// `bytes`.
pub(super) fn page_header(bytes: &[u8]) -> Option<PageHeader> {
    let mut header = PageHeader { is_compressed: true, ..PageHeader::default() };
    let mut thrift = Compact::new(bytes);
    thrift.structure(|thrift, id, kind| {
        match (id, kind) {
            (1, 5) => header.kind = thrift.number()?,
            (2, 5) => header.uncompressed = thrift.number()?,
            (3, 5) => header.compressed = thrift.number()?,
            (5, STRUCT) => {
                header.complete |= header.kind == DATA_PAGE;
                thrift.structure(|thrift, id, kind| {
                    match (id, kind) {
                        (1, 5) => header.values = thrift.number()?,
                        (2, 5) => header.encoding = thrift.number()?,
                        (3, 5) => header.definition_encoding = thrift.number()?,
                        (4, 5) => header.repetition_encoding = thrift.number()?,
                        _ => thrift.skip(kind, DEEPEST)?,
                    }
                    Some(())
                })?;
            }
            (7, STRUCT) => {
                header.complete |= header.kind == DICTIONARY_PAGE;
                thrift.structure(|thrift, id, kind| {
                    match (id, kind) {
                        (1, 5) => header.values = thrift.number()?,
                        (2, 5) => header.encoding = thrift.number()?,
                        _ => thrift.skip(kind, DEEPEST)?,
                    }
                    Some(())
                })?;
            }
            (8, STRUCT) => {
                header.complete |= header.kind == DATA_PAGE_V2;
                thrift.structure(|thrift, id, kind| {
                    match (id, kind) {
                        (1, 5) => header.values = thrift.number()?,
                        (2, 5) => header.nulls = thrift.number()?,
                        (3, 5) => header.rows = thrift.number()?,
                        (4, 5) => header.encoding = thrift.number()?,
                        (5, 5) => header.definition_bytes = thrift.number()?,
                        (6, 5) => header.repetition_bytes = thrift.number()?,
                        (7, TRUE) => header.is_compressed = true,
                        (7, FALSE) => header.is_compressed = false,
                        _ => thrift.skip(kind, DEEPEST)?,
                    }
                    Some(())
                })?;
            }
            _ => thrift.skip(kind, DEEPEST)?,
        }
        Some(())
    })?;
    header.length = thrift.at;
    Some(header)
}

/// Reads Thrift's compact protocol. Every method returns None if the bytes are invalid.
struct Compact<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Compact<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Compact { bytes, at: 0 }
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// Reads a signed number. All integers except bytes have this form.
    fn number(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Calls `field` with the id and type of each field. `field` must read or skip the value.
    fn structure(&mut self, mut field: impl FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut id = 0i64;
        loop {
            let header = self.byte()?;
            if header & 0x0f == 0 {
                return Some(());
            }
            id = match header >> 4 {
                0 => self.number()?,
                step => id.checked_add(step.into())?,
            };
            field(self, id, header & 0x0f)?;
        }
    }

    /// Calls `element` with the type of each element. `element` must read or skip the element.
    fn list(&mut self, mut element: impl FnMut(&mut Self, u8) -> Option<()>) -> Option<()> {
        let header = self.byte()?;
        let length = match header >> 4 {
            15 => self.varint()?,
            length => length.into(),
        };
        for _ in 0..length {
            element(self, header & 0x0f)?;
        }
        Some(())
    }

    /// Reads a number in a field of a structure. Returns zero if the structure has no such field.
    fn number_in(&mut self, kind: u8, wanted: i64) -> Option<i64> {
        if kind != STRUCT {
            return None;
        }
        let mut number = 0;
        self.structure(|thrift, id, kind| {
            if id == wanted && (4..=6).contains(&kind) {
                number = thrift.number()?;
                return Some(());
            }
            thrift.skip(kind, DEEPEST)
        })?;
        Some(number)
    }

    fn skip(&mut self, kind: u8, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            TRUE | FALSE => {}
            3 => self.at += 1,
            4..=6 => _ = self.varint()?,
            7 => self.at += 8,
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.at = self.at.checked_add(length)?;
            }
            LIST | 10 => self.list(|thrift, kind| match kind {
                // A boolean takes one byte in a list, and none in a field.
                TRUE | FALSE => thrift.byte().map(drop),
                _ => thrift.skip(kind, depth),
            })?,
            11 => {
                let length = self.varint()?;
                let kinds = if length > 0 { self.byte()? } else { 0 };
                for _ in 0..length {
                    self.skip(kinds >> 4, depth)?;
                    self.skip(kinds & 0x0f, depth)?;
                }
            }
            STRUCT => self.structure(|thrift, _, kind| thrift.skip(kind, depth))?,
            _ => return None,
        }
        (self.at <= self.bytes.len()).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_no_header() {
        assert_eq!(page_header(&[]), None);
        assert_eq!(page_header(&[0x15]), None);
        // Endlessly nested structures.
        assert_eq!(page_header(&[0x9c; 4096]), None);
        assert_eq!(footer_shape(&[0x2c; 4096]), None);
        // A list that claims more elements than there are bytes.
        assert_eq!(footer_shape(&[0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f]), None);
    }

    #[test]
    fn an_empty_structure_is_an_empty_header() {
        let header = page_header(&[0]).unwrap();
        assert_eq!((header.length, header.complete), (1, false));
    }
}
