//! The half message of a transactional one: what a destination would send, without a place in the log, and with what a
//! check-back is judged by.

use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Message as OutboxMessage, Position, Row};
use outhaul_core::receipt::Reason;
use rocketmq_remoting::message::Message;

use super::RocketMqConfig;
use super::broker::Facts;
use super::envelope::{check_size, refused, unplaced};
use crate::codes::SinkCode;

/// Property with the id of the transaction: the key of its row in `outbox_transaction`. Without it the message's unique
/// key is the id.
pub const TRANSACTION: &str = "outhaul-transaction";
/// Property with the name of the outbox whose row it is.
pub const ORIGIN: &str = "outhaul-origin";

/// Makes a half message for the topic of a row.
///
/// # Errors
/// Why RocketMQ would not take it, or not keep all of it; a half cannot be delayed.
pub fn half_message(config: &RocketMqConfig, row: Row, transaction: &str, origin: &str) -> Result<Message, Reason> {
    let facts = Facts::unknown("(any)");
    let topic = format!("{}{}", config.topic_prefix, row.topic);
    let from = OutboxMessage::from_row(row, Position(0), DestinationSet::EMPTY);
    let message = unplaced(&from, &topic, &config.tag, &facts)?;
    if message.is_delayed() {
        return Err(Reason::new(SinkCode::RocketMqDelay.code(), "a transactional message cannot be delayed"));
    }
    let message = message.with_property(TRANSACTION, transaction).map_err(|e| refused(&e))?;
    let message = message.with_property(ORIGIN, origin).map_err(|e| refused(&e))?;
    check_size(&message, &facts)?;
    Ok(message)
}
