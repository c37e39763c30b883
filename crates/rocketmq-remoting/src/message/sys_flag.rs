//! Bits of a message's system flag. Source: `MessageSysFlag`, `PullSysFlag` of RocketMQ 4.9.4 and 5.3.3.

/// The body is compressed.
pub const COMPRESSED: i32 = 0x1;
/// Several tags (no longer used).
pub const MULTI_TAGS: i32 = 0x2;
/// Both bits that tell the transaction's state.
pub const TRANSACTION_MASK: i32 = 0xC;
/// A half message.
pub const TRANSACTION_PREPARED: i32 = 0x4;
/// A committed message.
pub const TRANSACTION_COMMIT: i32 = 0x8;
/// A message that was rolled back.
pub const TRANSACTION_ROLLBACK: i32 = 0xC;
/// The sender's address has 16 bytes.
pub const BORN_HOST_V6: i32 = 0x10;
/// The broker's address has 16 bytes.
pub const STORE_HOST_V6: i32 = 0x20;
/// The body is a batch that the consumer takes apart; 5.x.
pub const NEED_UNWRAP: i32 = 0x40;
/// Stored as a batch; 5.x.
pub const INNER_BATCH: i32 = 0x80;
/// The bits that tell how the body is compressed.
pub const COMPRESSION_MASK: i32 = 0x700;

/// Pull: also commit the given offset.
pub const PULL_COMMIT_OFFSET: i32 = 0x1;
/// Pull: wait if there is nothing new.
pub const PULL_SUSPEND: i32 = 0x2;
/// Pull: the subscription is in the request, so that the group need not be registered.
pub const PULL_SUBSCRIPTION: i32 = 0x4;
