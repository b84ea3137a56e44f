//! Compresses the pages of columns that are encoded here.

use parquet::basic::Compression as Codec;
use parquet::errors::{ParquetError, Result};

/// Compresses pages.
pub(super) struct PageCodec {
    codec: Codec,
    compressor: Compressor,
}

enum Compressor {
    None,
    Snappy(Box<snap::raw::Encoder>),
    Zstd(zstd::bulk::Compressor<'static>),
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
        Ok(PageCodec { codec, compressor })
    }

    pub(super) fn codec(&self) -> Codec {
        self.codec
    }

    pub(super) fn compress(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        match &mut self.compressor {
            Compressor::None => Ok(bytes),
            Compressor::Snappy(encoder) => {
                encoder.compress_vec(&bytes).map_err(|e| ParquetError::General(e.to_string()))
            }
            Compressor::Zstd(compressor) => Ok(compressor.compress(&bytes)?),
        }
    }
}
