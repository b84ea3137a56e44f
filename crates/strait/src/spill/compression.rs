//! Compresses and decompresses the payloads of blocks.
//!
//! Both codecs work on whole payloads. The decompressed length is not part of the compressed bytes: the writer remembers
//! it. So no memory is allocated by a number from a file.

use lz4_flex::block::{compress_into, decompress_into, get_maximum_output_size};
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::compress_bound;

use crate::options::named;

/// The fastest usual level of Zstandard.
const ZSTD_LEVEL: i32 = 1;
/// A payload that saves less than 1/`LEAST_SAVING` of its bytes is not compressed.
const LEAST_SAVING: usize = 8;
/// The most memory that the LZ4 compressor takes besides its input and output: a table of positions.
const LZ4_COMPRESSOR: u64 = 16 << 10;
/// The most memory that a Zstandard compressor takes. It takes less for short payloads: `ZSTD_COMPRESSOR_PER_BYTE` per
/// byte, and `ZSTD_COMPRESSOR_LEAST`.
const ZSTD_COMPRESSOR: u64 = 1280 << 10;
const ZSTD_COMPRESSOR_PER_BYTE: u64 = 8;
const ZSTD_COMPRESSOR_LEAST: u64 = 96 << 10;
/// The memory that a Zstandard decompressor takes.
const ZSTD_DECOMPRESSOR: u64 = 192 << 10;

/// How a join compresses the rows that it [writes to disk](crate::Join::spill).
///
/// Each block of rows is compressed by itself. A block that compression makes less than an eighth smaller is written as
/// it is.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: impl Iterator<Item = i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from_iter_values(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use std::sync::Arc;
/// use strait::{Algorithm, Join, SpillCompression, TempFolders};
///
/// let join = Join::inner().on("id").algorithm(Algorithm::Spill);
/// let join = join.spill(Arc::new(TempFolders::new(vec![]))).spill_compression(SpillCompression::Lz4);
/// let (rows, report) = join.count(ids(0..100_000), ids(0..100_000))?;
/// assert_eq!(rows, 100_000);
/// assert!(report.spilled.bytes < report.spilled.uncompressed_bytes);
/// assert_eq!("zstd".parse::<SpillCompression>()?, SpillCompression::Zstd);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpillCompression {
    /// Writes the rows as they are. This is the default.
    #[default]
    None,
    /// Compresses fast, with LZ4.
    Lz4,
    /// Compresses better and more slowly, with Zstandard.
    Zstd,
}

named! {
    SpillCompression, "spill_compression", "compression", "All kinds of compression.",
    None => "none",
    Lz4 => "lz4",
    Zstd => "zstd",
}

impl SpillCompression {
    /// Returns the number that stands for it in a file.
    pub(super) fn number(self) -> u64 {
        self as u64
    }

    /// Returns the most bytes that a compressed payload of `payload` bytes has.
    pub(super) fn most_bytes(self, payload: usize) -> usize {
        match self {
            SpillCompression::None => payload,
            SpillCompression::Lz4 => get_maximum_output_size(payload),
            SpillCompression::Zstd => compress_bound(payload),
        }
    }

    /// Returns the memory that compressing a payload takes besides its input and output.
    pub(super) fn compressor_bytes(self, payload: usize) -> u64 {
        match self {
            SpillCompression::None => 0,
            SpillCompression::Lz4 => LZ4_COMPRESSOR,
            SpillCompression::Zstd => (payload as u64)
                .saturating_mul(ZSTD_COMPRESSOR_PER_BYTE)
                .saturating_add(ZSTD_COMPRESSOR_LEAST)
                .min(ZSTD_COMPRESSOR),
        }
    }

    /// Returns the memory that decompressing a payload takes besides its input and output.
    pub(super) fn decompressor_bytes(self) -> u64 {
        match self {
            SpillCompression::None | SpillCompression::Lz4 => 0,
            SpillCompression::Zstd => ZSTD_DECOMPRESSOR,
        }
    }

    /// Compresses a payload into memory of [`most_bytes`](Self::most_bytes). Returns the length, or `None` if
    /// compression saves too little.
    pub(super) fn compress(self, payload: &[u8], into: &mut [u8]) -> Option<usize> {
        let length = match self {
            SpillCompression::None => None,
            SpillCompression::Lz4 => compress_into(payload, into).ok(),
            SpillCompression::Zstd => {
                let compressor = Compressor::new(ZSTD_LEVEL);
                compressor.and_then(|mut it| it.compress_to_buffer(payload, into)).ok()
            }
        };
        length.filter(|&length| length <= payload.len() - payload.len() / LEAST_SAVING)
    }

    /// Decompresses a payload. Returns whether the result has exactly the length of `into`. The compressed bytes may be
    /// damaged: nothing is written outside `into`.
    pub(super) fn decompress(self, compressed: &[u8], into: &mut [u8]) -> bool {
        let length = match self {
            SpillCompression::None => None,
            SpillCompression::Lz4 => decompress_into(compressed, into).ok(),
            SpillCompression::Zstd => Decompressor::new()
                .and_then(|mut it| it.decompress_to_buffer(compressed, into))
                .ok(),
        };
        length == Some(into.len())
    }
}

#[cfg(test)]
mod tests {
    use strait_testkit::Rng;
    use zstd::zstd_safe::{CCtx, CParameter, DCtx};

    use super::*;

    const CODECS: [SpillCompression; 2] = [SpillCompression::Lz4, SpillCompression::Zstd];

    /// Returns numbers of eight bytes, as in columns of small numbers.
    fn payload(rng: &mut Rng, length: usize) -> Vec<u8> {
        let numbers = std::iter::from_fn(|| Some(rng.below(50) as u64));
        numbers.flat_map(u64::to_le_bytes).take(length).collect()
    }

    fn compressed(codec: SpillCompression, payload: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = vec![0; codec.most_bytes(payload.len())];
        let length = codec.compress(payload, &mut bytes)?;
        bytes.truncate(length);
        Some(bytes)
    }

    #[test]
    fn payloads_survive() {
        let mut rng = Rng::new(1);
        for codec in CODECS {
            for length in [500, 1000, 65_534, 65_535, 65_536, 1 << 20] {
                let payload = payload(&mut rng, length);
                let compressed = compressed(codec, &payload).expect("saves an eighth");
                let mut again = vec![0xff; length];
                assert!(codec.decompress(&compressed, &mut again) && again == payload);
                // Another length than the one that the writer remembers is an error.
                assert!(!codec.decompress(&compressed, &mut again[1..]));
                assert!(!codec.decompress(&compressed, &mut vec![0; length + 1]));
            }
        }
    }

    #[test]
    fn bytes_that_do_not_compress_stay_as_they_are() {
        let mut rng = Rng::new(2);
        let random: Vec<u8> = (0..10_000).map(|_| rng.below(256) as u8).collect();
        for codec in CODECS {
            assert_eq!(compressed(codec, &random), None);
            assert_eq!(compressed(codec, &[]), None);
        }
        assert_eq!(compressed(SpillCompression::None, &[0; 1000]), None);
    }

    /// The checksum of a block finds damage first. But the codecs must not rely on it.
    #[test]
    fn damaged_bytes_do_no_harm() {
        let mut rng = Rng::new(3);
        let mut refused = 0;
        for case in 0..20_000 {
            let codec = CODECS[case % 2];
            let length = 300 + rng.below(2000);
            let Some(mut bytes) = compressed(codec, &payload(&mut rng, length)) else { continue };
            for _ in 0..=rng.below(3) {
                let at = rng.below(bytes.len());
                bytes[at] = rng.below(256) as u8;
            }
            if rng.chance(1, 4) {
                bytes.truncate(rng.below(bytes.len()));
            }
            refused += usize::from(!codec.decompress(&bytes, &mut vec![0; length]));
        }
        assert!(refused > 5000, "{refused}");
        for codec in CODECS {
            assert!(!codec.decompress(&[], &mut [0; 100]));
        }
    }

    #[test]
    fn the_reserved_memory_suffices_for_zstd() {
        let codec = SpillCompression::Zstd;
        let mut rng = Rng::new(4);
        for shift in [4, 10, 13, 16, 17, 18, 20, 23] {
            let payload = payload(&mut rng, 1 << shift);
            let mut bytes = vec![0; codec.most_bytes(payload.len())];
            let mut context = CCtx::create();
            context.set_parameter(CParameter::CompressionLevel(ZSTD_LEVEL)).expect("a level");
            let length = context.compress2(&mut bytes[..], &payload).expect("compresses");
            let (takes, reserved) =
                (context.sizeof() as u64, codec.compressor_bytes(payload.len()));
            assert!(takes <= reserved, "2^{shift} bytes: {takes} of {reserved}");
            let (mut context, mut again) = (DCtx::create(), vec![0; payload.len()]);
            context.decompress(&mut again[..], &bytes[..length]).expect("decompresses");
            assert!(context.sizeof() as u64 <= codec.decompressor_bytes());
        }
    }
}
