//! Frames: bytes to [`Command`] and back, in both serialisations. Never panics, never allocates more than a small
//! multiple of what it was given.
//!
//! ```
//! use bytes::BytesMut;
//! use rocketmq_remoting::codec::{self, MAX_FRAME_BYTES};
//! use rocketmq_remoting::request::GetRoute;
//! use rocketmq_remoting::{Request, Serialization};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut bytes = BytesMut::new();
//! codec::encode(&GetRoute { topic: "Orders".into() }.command()?, Serialization::Binary, &mut bytes)?;
//! let frame = codec::split_frame(&mut bytes, MAX_FRAME_BYTES)?.expect("all of it is there");
//! let (command, serialization) = codec::decode(frame)?;
//! assert_eq!(command.ext.get("topic"), Some("Orders"));
//! assert_eq!(serialization, Serialization::Binary);
//! # Ok(())
//! # }
//! ```
//!
//! A frame is its length (4 bytes, big endian, of all that follows), then the serialisation type (1 byte) and header
//! length (3 bytes), header, body. Source: `RemotingCommand`, `NettyDecoder`, `RocketMQSerializable` of RocketMQ 4.9.4.

mod binary;
mod frame;
mod json;

use bytes::{BufMut, Bytes, BytesMut};

use crate::command::Command;

pub use frame::{MAX_FRAME_BYTES, split_frame};

/// How a header is written. A peer may answer in another one than it was asked in, so both are always read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Serialization {
    /// A JSON object.
    #[default]
    Json,
    /// The type that RocketMQ calls ROCKETMQ. Carries only codes and versions of 16 bits.
    Binary,
}

/// What cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// Longer than the limit, or with a negative length.
    #[error("a frame of {bytes} bytes, the limit is {limit_bytes}")]
    FrameTooLarge {
        /// What the frame's length field says, as an unsigned number.
        bytes: u64,
        /// The limit.
        limit_bytes: usize,
    },
    /// The frame ends before what it announces.
    #[error("the frame ends within its {0}")]
    Truncated(&'static str),
    /// A serialisation type that is neither JSON nor ROCKETMQ.
    #[error("serialisation type {0} is not known")]
    SerializationUnknown(u8),
    /// The header is not what its serialisation type says.
    #[error("the header cannot be read: {0}")]
    Header(String),
    /// A part of a command is too large for its field in the chosen serialisation.
    #[error("{0} does not fit into a header")]
    DoesNotFit(&'static str),
}

/// Appends the whole frame, its length included, to `into`. On an error `into` is as before.
///
/// # Errors
/// [`CodecError::DoesNotFit`] if the ROCKETMQ form has no room for the code, the version or a text, or the header is
/// 16 MiB or longer; [`CodecError::FrameTooLarge`] if the frame would be longer than [`MAX_FRAME_BYTES`].
pub fn encode(command: &Command, serialization: Serialization, into: &mut BytesMut) -> Result<(), CodecError> {
    into.reserve(8 + 256 + command.body.len());
    encode_head(command, serialization, into)?;
    into.extend_from_slice(&command.body);
    Ok(())
}

/// As [`encode`], without the body: lengths and header of a frame whose body is written right after them. A connection
/// that writes both in one call does not copy the body.
///
/// # Errors
/// As [`encode`].
pub fn encode_head(command: &Command, serialization: Serialization, into: &mut BytesMut) -> Result<(), CodecError> {
    let start = into.len();
    let result = append(command, serialization, into, start);
    if result.is_err() {
        into.truncate(start);
    }
    result
}

fn append(
    command: &Command,
    serialization: Serialization,
    into: &mut BytesMut,
    start: usize,
) -> Result<(), CodecError> {
    into.put_u64(0); // both lengths, known at the end
    match serialization {
        Serialization::Json => json::write(command, into)?,
        Serialization::Binary => binary::write(command, into)?,
    }
    let header_bytes = into.len() - start - 8;
    let frame_bytes = 4 + header_bytes + command.body.len();
    if header_bytes > frame::MAX_HEADER_BYTES {
        return Err(CodecError::DoesNotFit("a header of more than 16 MiB"));
    }
    if frame_bytes > MAX_FRAME_BYTES {
        return Err(CodecError::FrameTooLarge { bytes: frame_bytes as u64, limit_bytes: MAX_FRAME_BYTES });
    }
    let lengths = ((frame_bytes as u64) << 32)
        | ((header_bytes as u64) & 0x00FF_FFFF)
        | match serialization {
            Serialization::Json => 0,
            Serialization::Binary => 1 << 24,
        };
    if let Some(place) = into.get_mut(start..start + 8) {
        place.copy_from_slice(&lengths.to_be_bytes());
    }
    Ok(())
}

/// Reads a frame without its first four bytes, as [`split_frame`] gives it. The command's body shares the buffer.
///
/// # Errors
/// Any [`CodecError`] but `DoesNotFit`: the bytes are no frame, and what follows on the connection cannot be trusted.
pub fn decode(mut frame: Bytes) -> Result<(Command, Serialization), CodecError> {
    let Some(&[kind, a, b, c]) = frame.first_chunk::<4>() else {
        return Err(CodecError::Truncated("header length"));
    };
    let header_bytes = u32::from_be_bytes([0, a, b, c]) as usize;
    if frame.len() - 4 < header_bytes {
        return Err(CodecError::Truncated("header"));
    }
    let body = frame.split_off(4 + header_bytes);
    let header = frame.get(4..).unwrap_or_default();
    match kind {
        0 => Ok((json::read(header, body)?, Serialization::Json)),
        1 => Ok((binary::read(header, body)?, Serialization::Binary)),
        other => Err(CodecError::SerializationUnknown(other)),
    }
}

#[cfg(test)]
mod tests;
