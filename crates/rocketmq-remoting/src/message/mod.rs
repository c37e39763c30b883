//! What is sent and what is stored.

mod batch;
mod compression;
mod names;
mod offset_id;
mod outgoing;
mod properties;
mod queue;
mod stored;
pub mod sys_flag;
mod unique_key;

pub use batch::{Batch, BatchBuilder, BatchedMessage, decode_batch};
pub use compression::{Compression, CompressionError, compress, decompress};
pub use names::{MAX_GROUP_BYTES, MAX_TOPIC_BYTES, check_group, check_topic, check_topic_for_sending};
pub use offset_id::{OffsetId, OffsetIdError};
pub use outgoing::{DEFAULT_MAX_MESSAGE_BYTES, Message};
pub use properties::{MAX_PROPERTIES_BYTES, Properties, is_reserved, name};
pub use queue::{MessageQueue, java_hash, queue_by_hash};
pub use stored::{DEFAULT_MAX_BODY_BYTES, StoredError, StoredMessage};
pub use unique_key::UniqueKeys;

/// A message that breaks a rule or limit of the protocol. Brokers accept some of these and then lose or mangle a part
/// of the message (rocketmq.md B.6), so they are refused before anything is sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// A topic's name: 1 to 127 of `a-zA-Z0-9_%|-`.
    #[error("a topic is 1 to {MAX_TOPIC_BYTES} of a-zA-Z0-9_%|-: {0:?} is not")]
    Topic(String),
    /// A topic that belongs to the broker.
    #[error("topic {0} belongs to the broker: nothing can be sent to it")]
    SystemTopic(String),
    /// A group's name: 1 to 255 of `a-zA-Z0-9_%|-`.
    #[error("a group is 1 to {MAX_GROUP_BYTES} of a-zA-Z0-9_%|-: {0:?} is not")]
    Group(String),
    /// A body of 0 bytes: 5.x brokers fail on it.
    #[error("a message needs a body")]
    BodyEmpty,
    /// A body above the limit.
    #[error("a body of {bytes} bytes, the limit is {limit_bytes}")]
    BodyTooLarge {
        /// The body.
        bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A property without a name or value, which brokers drop.
    #[error("property {0:?} has no name or no value: the broker would drop it")]
    PropertyEmpty(String),
    /// A property's name or value has a character that separates properties.
    #[error("property {0:?} has a character 0x01 or 0x02, which separate properties")]
    PropertySeparator(String),
    /// A user property with a name that RocketMQ uses itself.
    #[error("property {0:?} has a meaning of its own to RocketMQ")]
    PropertyReserved(String),
    /// All properties together are too long.
    #[error("properties of {bytes} bytes, the limit is {MAX_PROPERTIES_BYTES}")]
    PropertiesTooLarge {
        /// All of them, encoded.
        bytes: usize,
    },
    /// A key, tag or unique key with a character that separates several of them.
    #[error("{what} {value:?} has a character that separates several of them")]
    Separator {
        /// `key`, `tag` or `unique key`.
        what: &'static str,
        /// The value.
        value: String,
    },
    /// A delay level below 1.
    #[error("delay level {0}: levels start at 1")]
    DelayLevel(i32),
    /// A delayed half message: the broker would delay the half, and its topic would be lost.
    #[error("a half message cannot be delayed")]
    DelayedHalf,
    /// A delayed message in a batch: the broker would not delay it.
    #[error("a message of a batch cannot be delayed")]
    DelayedInBatch,
    /// A message of a batch without a unique key: consumers could not tell it from others.
    #[error("a message of a batch needs a unique key")]
    NoUniqueKey,
    /// A message of a batch with another topic or another wish to wait.
    #[error("messages of a batch have one topic, and all wait for the flush or none does")]
    MixedBatch,
    /// A batch without messages.
    #[error("a batch needs a message")]
    BatchEmpty,
    /// A body could not be compressed.
    #[error("the body cannot be compressed: {0}")]
    Compression(String),
}
