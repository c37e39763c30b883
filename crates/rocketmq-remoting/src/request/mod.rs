//! Requests and their answers, one file each.
//!
//! A request's numbers and names are written as its Java header class has them, which each file names. Fields that are
//! not set are not sent.

mod answer;
mod check_transaction_state;
mod create_subscription_group;
mod create_topic;
mod delete_topic;
mod end_transaction;
mod get_broker_config;
mod get_cluster_info;
mod get_consumer_list;
mod get_route;
mod get_runtime_info;
mod heartbeat;
mod lenient_json;
mod max_offset;
mod min_offset;
mod pull;
mod query_consumer_offset;
mod query_message;
mod resume_half;
mod search_offset;
mod send_batch;
mod send_message;
mod unregister_client;
mod update_broker_config;
mod update_consumer_offset;
mod view_message;

pub use answer::{Acknowledged, OffsetAnswer};
pub use check_transaction_state::CheckTransactionState;
pub use create_subscription_group::CreateSubscriptionGroup;
pub use create_topic::{CreateTopic, PERM_READ, PERM_WRITE};
pub use delete_topic::{DeleteTopicInBroker, DeleteTopicInNameServer};
pub use end_transaction::{EndTransaction, Resolution};
pub use get_broker_config::{BrokerConfig, DURABILITY_KEYS, GetBrokerConfig};
pub use get_cluster_info::{ClusterInfo, GetClusterInfo};
pub use get_consumer_list::GetConsumerList;
pub use get_route::{BrokerData, GetRoute, MASTER_ID, QueueData, Route};
pub use get_runtime_info::{GetRuntimeInfo, RuntimeInfo};
pub use heartbeat::{ConsumerData, Heartbeat, HeartbeatAnswer};
pub use max_offset::GetMaxOffset;
pub use min_offset::GetMinOffset;
pub use pull::{Pull, PullAnswer, PullStatus, Subscription};
pub use query_consumer_offset::{ConsumerOffset, QueryConsumerOffset};
pub use query_message::QueryMessage;
pub use resume_half::ResumeHalf;
pub use search_offset::SearchOffset;
pub use send_batch::SendBatch;
pub use send_message::{Delivery, SendAnswer, SendMessage, SendStatus, UNKNOWN_DEFAULT_TOPIC};
pub use unregister_client::UnregisterClient;
pub use update_broker_config::UpdateBrokerConfig;
pub use update_consumer_offset::UpdateConsumerOffset;
pub use view_message::ViewMessage;

use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;

/// A request that knows its answer.
pub trait Request {
    /// What a successful answer holds.
    type Answer;

    /// What is asked.
    const CODE: RequestCode;

    /// The request as a command, unsigned and without an opaque.
    ///
    /// # Errors
    /// [`Error::Message`] if what is to be sent breaks a rule of the protocol.
    fn command(&self) -> Result<Command, Error>;

    /// Reads the answer.
    ///
    /// # Errors
    /// [`Error::Refused`] if its code is none of this request's results; [`Error::Answer`] or [`Error::Stored`] if it
    /// lacks something or cannot be read.
    fn answer(&self, answer: Command) -> Result<Self::Answer, Error>;
}
