//! Cutting a stream of bytes into frames.

use bytes::{Buf, Bytes, BytesMut};

use super::CodecError;

/// The longest frame that brokers and Java clients read, in bytes without the length field: 16 MiB
/// (`com.rocketmq.remoting.frameMaxLength`). A longer one makes them close the connection.
pub const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;
/// The header's length has 24 bits.
pub(super) const MAX_HEADER_BYTES: usize = 0x00FF_FFFF;

/// Takes one whole frame, without its four length bytes, off the front of `buffer`; `None` until it has all arrived, and
/// then `buffer` has room for the rest of it (at most `max_frame_bytes`). The frame shares the buffer's memory.
///
/// # Errors
/// [`CodecError::FrameTooLarge`] for a length above `max_frame_bytes` (negative lengths are); `buffer` is then as it
/// was, and the connection of no use.
pub fn split_frame(buffer: &mut BytesMut, max_frame_bytes: usize) -> Result<Option<Bytes>, CodecError> {
    let Some(length) = buffer.first_chunk::<4>() else { return Ok(None) };
    let bytes = u32::from_be_bytes(*length);
    let Some(frame_bytes) = usize::try_from(bytes).ok().filter(|b| *b <= max_frame_bytes) else {
        return Err(CodecError::FrameTooLarge { bytes: u64::from(bytes), limit_bytes: max_frame_bytes });
    };
    if buffer.len() - 4 < frame_bytes {
        buffer.reserve(4 + frame_bytes - buffer.len());
        return Ok(None);
    }
    buffer.advance(4);
    Ok(Some(buffer.split_to(frame_bytes).freeze()))
}
