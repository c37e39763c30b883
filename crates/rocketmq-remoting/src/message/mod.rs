//! What is sent and what is stored.

use bytes::Bytes;

/// A message that breaks a rule or limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {}

/// A message to be sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    topic: String,
    body: Bytes,
}
