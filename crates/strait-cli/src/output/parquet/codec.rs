//! Compresses the pages of columns that are encoded here.

use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Compression as Codec;
use parquet::errors::{ParquetError, Result};

/// Compresses pages. Each lane has one.
pub(super) struct PageCodec {
    codec: Codec,
    compressor: Compressor,
    /// The memory of the last page, which the next page uses again.
    page: Arc<Vec<u8>>,
}

enum Compressor {
    None,
    Snappy(Box<snap::raw::Encoder>),
    Zstd(zstd::bulk::Compressor<'static>),
}

/// The first bytes of a buffer.
struct Start(Arc<Vec<u8>>, usize);

impl AsRef<[u8]> for Start {
    fn as_ref(&self) -> &[u8] {
        &self.0[..self.1]
    }
}

impl PageCodec {
    pub(super) fn new(codec: Codec) -> Result<PageCodec> {
        let compressor = match codec {
            Codec::UNCOMPRESSED => Compressor::None,
            Codec::SNAPPY => Compressor::Snappy(Box::new(snap::raw::Encoder::new())),
            Codec::ZSTD(level) => {
                Compressor::Zstd(zstd::bulk::Compressor::new(level.compression_level())?)
            }
            other => return Err(ParquetError::General(format!("pages have no codec {other}"))),
        };
        Ok(PageCodec { codec, compressor, page: Arc::default() })
    }

    pub(super) fn codec(&self) -> Codec {
        self.codec
    }

    /// Compresses a page. If the caller drops the result before the next call, its memory is used again.
    pub(super) fn compress(&mut self, bytes: &[u8]) -> Result<Bytes> {
        let length = match &mut self.compressor {
            Compressor::None => return self.copy(bytes),
            Compressor::Snappy(encoder) => {
                let page = room(&mut self.page, snap::raw::max_compress_len(bytes.len()))?;
                let compressed = encoder.compress(bytes, page);
                compressed.map_err(|error| ParquetError::General(error.to_string()))?
            }
            Compressor::Zstd(compressor) => {
                let page = room(&mut self.page, zstd::zstd_safe::compress_bound(bytes.len()))?;
                compressor.compress_to_buffer(bytes, page)?
            }
        };
        Ok(Bytes::from_owner(Start(Arc::clone(&self.page), length)))
    }

    /// Copies a page that is not compressed.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Result<Bytes> {
        room(&mut self.page, bytes.len())?[..bytes.len()].copy_from_slice(bytes);
        Ok(Bytes::from_owner(Start(Arc::clone(&self.page), bytes.len())))
    }
}

/// Returns memory of at least `bytes` bytes.
fn room(page: &mut Arc<Vec<u8>>, bytes: usize) -> Result<&mut [u8]> {
    if Arc::get_mut(page).is_none_or(|page| page.len() < bytes) {
        *page = Arc::new(vec![0; bytes]);
    }
    let page = Arc::get_mut(page);
    page.map(Vec::as_mut_slice).ok_or_else(|| ParquetError::General("a page is in use".to_string()))
}
