//! Apache RocketMQ, 4.9 and 5.x, over its remoting protocol.
//!
//! | file | holds |
//! |---|---|
//! | `config` | keys |
//! | `sink` | the implementation: start, what is demanded |
//! | `cluster` | brokers that were looked at, topics, the client |
//! | `broker`, `ack` | what a broker is, and what its acknowledgement proves |
//! | `queues` | which queue a key belongs to |
//! | `envelope` | what a message becomes |
//! | `plan`, `deliver` | a batch of a slot: groups by queue, requests, what is held back |
//! | `window` | how much a broker is given at once |
//! | `outcome`, `place` | from answers to outcomes, and the detail of a receipt |
//! | `verify`, `barrier` | what a broker forgot, and what it has flushed |
//! | `examine` | what `outhaul validate` prints |
//! | `received` | what a consumer reads of an envelope |
//! | `half` | the half message of a transactional one |
//!
//! Order: a key has one slot, and in a topic one queue, so its messages go one request after the other. Several slots
//! may have a request under way to one queue: they hold different keys.
//!
//! Nothing is sent over a connection that was not looked at: each request names the connection that the last
//! [`start`](crate::Sink::start) saw, and one that was renewed in between is answered `DestinationDown`, so that the
//! relay can compare first what the broker has with what it acknowledged.

mod ack;
mod barrier;
mod broker;
mod cluster;
pub mod config;
mod deliver;
mod envelope;
mod examine;
mod half;
mod outcome;
mod place;
mod plan;
mod queues;
mod received;
mod sink;
mod turn;
mod verify;
mod window;

pub use config::{OnMissingBroker, OnWeakAck, RocketMqConfig};
pub use half::{ORIGIN, TRANSACTION, half_message};
pub use received::{Received, short_id};
pub use sink::RocketMqSink;
