//! Decompresses the pages of Parquet files, never into more bytes than a page claims.

use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use flate2::read::MultiGzDecoder;
use parquet::basic::Compression;
use parquet::errors::{ParquetError, Result};

/// The decompressor that all columns of a reader share. It takes more memory than most pages.
pub(super) type Shared = Arc<Mutex<Option<zstd::bulk::Decompressor<'static>>>>;

/// Decompresses pages of one column chunk.
pub(super) struct Codec {
    compression: Compression,
    zstd: Shared,
}

impl Codec {
    pub(super) fn new(compression: Compression, zstd: &Shared) -> Codec {
        Codec { compression, zstd: Arc::clone(zstd) }
    }

    /// Whether pages of this compression can be read.
    pub(super) fn reads(compression: Compression) -> bool {
        use Compression::{GZIP, LZ4, LZ4_RAW, SNAPPY, UNCOMPRESSED, ZSTD};
        matches!(compression, UNCOMPRESSED | SNAPPY | GZIP(_) | ZSTD(_) | LZ4 | LZ4_RAW)
    }

    /// Whether pages are compressed at all.
    pub(super) fn is_none(&self) -> bool {
        self.compression == Compression::UNCOMPRESSED
    }

    /// The most bytes that this many compressed bytes can decompress to.
    pub(super) fn most(&self, compressed: u64) -> u64 {
        let each = match self.compression {
            Compression::SNAPPY => 64,
            Compression::LZ4 | Compression::LZ4_RAW => 256,
            Compression::GZIP(_) => 1100,
            // A block of 128 KiB can take only four bytes.
            _ => 1 << 15,
        };
        compressed.saturating_mul(each)
    }

    /// Appends the decompressed `input` to `output`. The result must have exactly `length` bytes.
    pub(super) fn decompress(
        &self,
        input: &[u8],
        length: usize,
        output: &mut Vec<u8>,
    ) -> Result<()> {
        let start = output.len();
        output.try_reserve_exact(length).map_err(external)?;
        match self.compression {
            Compression::SNAPPY => {
                if snap::raw::decompress_len(input).map_err(external)? != length {
                    return Err(wrong_size());
                }
                output.resize(start + length, 0);
                let mut decoder = snap::raw::Decoder::new();
                decoder.decompress(input, &mut output[start..]).map_err(external)?;
            }
            Compression::GZIP(_) => {
                MultiGzDecoder::new(input).take(length as u64 + 1).read_to_end(output)?;
            }
            Compression::ZSTD(_) => {
                let mut zstd = self.zstd.lock().unwrap_or_else(PoisonError::into_inner);
                let zstd = match &mut *zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd::bulk::Decompressor::new()?),
                };
                let mut decompressed = std::io::Cursor::new(&mut *output);
                decompressed.set_position(start as u64);
                zstd.decompress_to_buffer(input, &mut decompressed)?;
            }
            Compression::LZ4_RAW => raw_lz4(input, length, output)?,
            Compression::LZ4 => lz4(input, length, output)?,
            other => {
                return Err(ParquetError::NYI(format!("pages compressed with {other}")));
            }
        }
        if output.len() == start + length { Ok(()) } else { Err(wrong_size()) }
    }
}

fn raw_lz4(input: &[u8], length: usize, output: &mut Vec<u8>) -> Result<()> {
    let start = output.len();
    output.resize(start + length, 0);
    let written =
        lz4_flex::block::decompress_into(input, &mut output[start..]).map_err(external)?;
    output.truncate(start + written);
    Ok(())
}

/// Decompresses the codec that Parquet calls LZ4. It exists in three forms: in Hadoop's frames, in LZ4's own
/// frames, and as one raw block.
fn lz4(input: &[u8], length: usize, output: &mut Vec<u8>) -> Result<()> {
    let start = output.len();
    if hadoop_lz4(input, length, output).is_some() {
        return Ok(());
    }
    output.truncate(start);
    let frame = lz4_flex::frame::FrameDecoder::new(input);
    if frame.take(length as u64 + 1).read_to_end(output).is_ok() && output.len() == start + length {
        return Ok(());
    }
    output.truncate(start);
    raw_lz4(input, length, output)
}

/// Decompresses Hadoop's frames. Each frame begins with its decompressed and its compressed length. Returns
/// None if the input has another form.
fn hadoop_lz4(mut input: &[u8], length: usize, output: &mut Vec<u8>) -> Option<()> {
    let start = output.len();
    while !input.is_empty() {
        let (sizes, rest) = input.split_first_chunk::<8>()?;
        let [a, b, c, d, e, f, g, h] = *sizes;
        let decompressed = u32::from_be_bytes([a, b, c, d]) as usize;
        let compressed = u32::from_be_bytes([e, f, g, h]) as usize;
        let (frame, rest) = rest.split_at_checked(compressed)?;
        if output.len() - start + decompressed > length {
            return None;
        }
        raw_lz4(frame, decompressed, output).ok()?;
        input = rest;
    }
    (output.len() == start + length).then_some(())
}

fn wrong_size() -> ParquetError {
    ParquetError::General("a page does not decompress to the size that its header says".into())
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> ParquetError {
    ParquetError::General(format!("a page cannot be decompressed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::basic::{GzipLevel, ZstdLevel};
    use std::io::Write;

    fn decompressed(compression: Compression, input: &[u8], length: usize) -> Option<Vec<u8>> {
        let mut output = b"ab".to_vec();
        Codec::new(compression, &Shared::default()).decompress(input, length, &mut output).ok()?;
        Some(output.split_off(2))
    }

    #[test]
    fn every_codec_yields_the_claimed_size_or_fails() {
        let text = b"strait ".repeat(1000);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        let block = lz4_flex::block::compress(&text);
        let sizes = [(text.len() as u32).to_be_bytes(), (block.len() as u32).to_be_bytes()];
        let mut frame = lz4_flex::frame::FrameEncoder::new(Vec::new());
        frame.write_all(&text).unwrap();
        let inputs = [
            (Compression::SNAPPY, snap::raw::Encoder::new().compress_vec(&text).unwrap()),
            (Compression::GZIP(GzipLevel::default()), gzip.finish().unwrap()),
            (Compression::ZSTD(ZstdLevel::default()), zstd::encode_all(&text[..], 1).unwrap()),
            (Compression::LZ4_RAW, block.clone()),
            (Compression::LZ4, [&sizes.concat()[..], &block].concat()),
            (Compression::LZ4, frame.finish().unwrap()),
            (Compression::LZ4, block),
        ];
        for (compression, input) in inputs {
            let whole = decompressed(compression, &input, text.len());
            assert_eq!(whole.as_deref(), Some(&text[..]), "{compression}");
            for wrong in [0, 1, text.len() - 1, text.len() + 1] {
                assert_eq!(decompressed(compression, &input, wrong), None, "{compression} {wrong}");
            }
        }
        assert_eq!(decompressed(Compression::LZO, b"x", 1), None);
    }
}
