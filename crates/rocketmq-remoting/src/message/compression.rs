//! Compressed bodies. Source: `CompressionType`, `LZ4Compressor`, `ZstdCompressor`, `ZlibCompressor` of RocketMQ 4.9.4.

use std::io::Read;

use super::sys_flag;

/// How a body is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Zlib format (RFC 1950), Java's default.
    Zlib,
    /// LZ4 frame format.
    Lz4,
    /// A zstd frame.
    Zstd,
}

impl Compression {
    /// What the system flag says, if the body is compressed at all. Old clients leave the type out and mean zlib.
    ///
    /// # Errors
    /// [`CompressionError::Unknown`].
    pub const fn of(sys_flag: i32) -> Result<Option<Self>, CompressionError> {
        if sys_flag & sys_flag::COMPRESSED == 0 {
            return Ok(None);
        }
        match (sys_flag & sys_flag::COMPRESSION_MASK) >> 8 {
            0 | 3 => Ok(Some(Self::Zlib)),
            1 => Ok(Some(Self::Lz4)),
            2 => Ok(Some(Self::Zstd)),
            other => Err(CompressionError::Unknown(other)),
        }
    }

    /// The bits of the system flag for a body that is compressed like this.
    #[must_use]
    pub const fn sys_flag(self) -> i32 {
        sys_flag::COMPRESSED
            | match self {
                Self::Lz4 => 1 << 8,
                Self::Zstd => 2 << 8,
                Self::Zlib => 3 << 8,
            }
    }
}

/// A body that cannot be decompressed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressionError {
    /// A compression type that is not known.
    #[error("compression type {0} is not known")]
    Unknown(i32),
    /// More than was allowed. What had been read is thrown away.
    #[error("decompressed, the body has more than {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// The bytes are not in this format.
    #[error("the body is not {0:?}")]
    Corrupt(Compression),
}

/// The most memory that a zstd frame may ask for: a window of 2^25 bytes (32 MiB). Levels up to 19 need 8 MiB.
const MAX_ZSTD_WINDOW_LOG: u32 = 25;

/// Decompresses a body into at most `limit_bytes` bytes. That an LZ4 frame is cut off between two of its blocks is not
/// noticed here; a stored message's checksum tells.
///
/// # Errors
/// [`CompressionError`].
pub fn decompress(body: &[u8], compression: Compression, limit_bytes: usize) -> Result<Vec<u8>, CompressionError> {
    let corrupt = |_: std::io::Error| CompressionError::Corrupt(compression);
    let mut out = Vec::new();
    let limit = (limit_bytes as u64).saturating_add(1);
    match compression {
        Compression::Zlib => flate2::read::ZlibDecoder::new(body).take(limit).read_to_end(&mut out),
        Compression::Lz4 => lz4_flex::frame::FrameDecoder::new(body).take(limit).read_to_end(&mut out),
        Compression::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(body).map_err(corrupt)?;
            decoder.window_log_max(MAX_ZSTD_WINDOW_LOG).map_err(corrupt)?;
            decoder.take(limit).read_to_end(&mut out)
        }
    }
    .map_err(corrupt)?;
    if out.len() > limit_bytes { Err(CompressionError::TooLarge { limit_bytes }) } else { Ok(out) }
}

/// Compresses a body, with the levels that Java uses by default (zlib 5, zstd 5).
///
/// # Errors
/// Only if the compressing library fails.
pub fn compress(body: &[u8], compression: Compression) -> std::io::Result<Vec<u8>> {
    use std::io::Write;
    match compression {
        Compression::Zlib => {
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(5));
            encoder.write_all(body)?;
            encoder.finish()
        }
        Compression::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(body)?;
            Ok(encoder.finish()?)
        }
        Compression::Zstd => zstd::encode_all(body, 5),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Compression; 3] = [Compression::Zlib, Compression::Lz4, Compression::Zstd];

    #[test]
    fn a_bomb_is_not_unpacked() {
        for compression in ALL {
            let small = compress(&vec![0; 2 << 20], compression).unwrap();
            assert!(small.len() < 20_000);
            assert_eq!(
                decompress(&small, compression, 1 << 20),
                Err(CompressionError::TooLarge { limit_bytes: 1 << 20 }),
                "{compression:?}"
            );
        }
    }

    #[test]
    fn the_limit_itself_is_allowed() {
        for compression in ALL {
            let packed = compress(b"12345", compression).unwrap();
            assert_eq!(decompress(&packed, compression, 5).unwrap(), b"12345");
            assert!(decompress(&packed, compression, 4).is_err());
            let cut = decompress(&packed[..packed.len() / 2], compression, 5);
            if compression != Compression::Lz4 {
                assert_eq!(cut, Err(CompressionError::Corrupt(compression)));
            }
        }
    }

    #[test]
    fn types_are_the_bits_of_message_sys_flag() {
        assert_eq!(Compression::of(0x300), Ok(None));
        assert_eq!(Compression::of(0x001), Ok(Some(Compression::Zlib)));
        assert_eq!(Compression::of(0x101), Ok(Some(Compression::Lz4)));
        assert_eq!(Compression::of(0x201), Ok(Some(Compression::Zstd)));
        assert_eq!(Compression::of(0x301), Ok(Some(Compression::Zlib)));
        assert_eq!(Compression::of(0x401), Err(CompressionError::Unknown(4)));
        for compression in ALL {
            assert_eq!(Compression::of(compression.sys_flag()), Ok(Some(compression)));
        }
    }

    proptest! {
        #[test]
        fn what_is_compressed_comes_back(body in prop::collection::vec(any::<u8>(), 0..2_000)) {
            for compression in ALL {
                let packed = compress(&body, compression).unwrap();
                prop_assert_eq!(&decompress(&packed, compression, body.len()).unwrap(), &body);
            }
        }

        #[test]
        fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            for compression in ALL {
                let _ = decompress(&bytes, compression, 10_000);
            }
        }

        #[test]
        fn damaged_bytes_never_panic(body in prop::collection::vec(0u8..4, 1..500), at in any::<prop::sample::Index>(), with in any::<u8>()) {
            for compression in ALL {
                let mut packed = compress(&body, compression).unwrap();
                let at = at.index(packed.len());
                packed[at] ^= with;
                let _ = decompress(&packed, compression, 10_000);
            }
        }
    }
}
