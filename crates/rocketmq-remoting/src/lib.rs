//! Apache RocketMQ's remoting protocol, versions 4.9 and 5.x, and a client for it.
//!
//! The protocol part is pure: no socket, no clock, no randomness. [`codec`] turns frames into [`Command`]s and back,
//! [`request`] has one file for each request with its typed answer, [`message`] is what is sent and what is stored,
//! [`acl`] signs. Nothing in it panics, whatever the bytes.
//!
//! What it is not: a push consumer with rebalancing, or a client for the gRPC port of a 5.x proxy.
#![warn(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing))]

pub mod acl;
pub mod client;
pub mod code;
pub mod codec;
pub mod command;
pub mod connection;
pub mod error;
pub mod message;
pub mod request;
pub mod tls;

pub use acl::Credentials;
pub use code::{RequestCode, ResponseCode};
pub use codec::Serialization;
pub use command::{Command, ExtFields, Language};
pub use error::Error;
pub use message::Message;
pub use request::Request;
