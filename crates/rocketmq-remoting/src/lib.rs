//! Apache RocketMQ's remoting protocol, versions 4.9 and 5.x, and a client for it.
//!
//! The protocol part is pure: no socket, no clock, no randomness. [`codec`] turns frames into [`Command`]s and back,
//! [`request`] has one file for each request with its typed answer, [`message`] is what is sent and what is stored,
//! [`acl`] signs. Nothing in it panics, whatever the bytes.
//!
//! On it stand [`connection`] (TCP or TLS to one address: pipelined, bounded, reconnecting, [`tls`]) and [`client`] (name
//! servers, routes, sending, half messages, reading, administration).
//!
//! ```no_run
//! use rocketmq_remoting::Message;
//! use rocketmq_remoting::client::{Client, ClientOptions, Producer, SendOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(ClientOptions::new("127.0.0.1:9876")?);
//! let producer = Producer::new(&client, "orders")?;
//! let queue = producer.queue_for("Orders", "user-7").await?;
//! let message = Message::new("Orders", "paid")?.with_unique_key("7F3A0C51D2E84B6690AB13C47E25F801")?;
//! match producer.send(&queue, &message, &SendOptions::default()).await {
//!     Ok(sent) => println!("stored at {}: {:?}", sent.answer.queue_offset, sent.answer.status),
//!     Err(error) if error.may_have_been_done() => println!("perhaps stored: {error}"),
//!     Err(error) => println!("not stored: {error}"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What it is not: a push consumer that is given a listener (membership of a group and the shares of its members are here), or a client for the gRPC port of a 5.x proxy.
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
