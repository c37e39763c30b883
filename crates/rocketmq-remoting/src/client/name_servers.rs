//! Name servers, of which one is enough.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::code::ResponseCode;
use crate::connection::{Channel, describe};
use crate::error::Error;
use crate::request::Request;

/// Asks one name server, and the others when it fails. Brokers register with all of them.
#[derive(Debug)]
pub(crate) struct NameServers {
    channels: Vec<Channel>,
    /// The one that answered last.
    current: AtomicUsize,
}

impl NameServers {
    pub(crate) const fn new(channels: Vec<Channel>) -> Self {
        Self { channels, current: AtomicUsize::new(0) }
    }

    pub(crate) fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Asks until one answers, within `limit` for all together. A name server that was started a moment ago may not
    /// know a topic yet, so that "no such topic" counts only if all who answer say so.
    pub(crate) async fn request<R: Request>(&self, request: &R, limit: Duration) -> Result<R::Answer, Error> {
        let deadline = Instant::now() + limit;
        let (all, first) = (self.channels.len(), self.current.load(Ordering::Relaxed));
        let mut unknown_topic = None;
        let mut failure = None;
        for turn in 0..all {
            let at = (first + turn) % all;
            let Some(channel) = self.channels.get(at) else { break };
            let left = deadline.saturating_duration_since(Instant::now());
            // What is left is shared among those who have not been asked.
            let share = left / u32::try_from(all - turn).unwrap_or(u32::MAX);
            match channel.request(request, share).await {
                Ok(answer) => {
                    self.current.store(at, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(error) if error.refused_with() == Some(ResponseCode::TopicNotExist) => {
                    self.current.store(at, Ordering::Relaxed);
                    unknown_topic = Some(error);
                }
                Err(error) => {
                    tracing::debug!(name_server = %channel.address(), error = describe(&error), "name server failed");
                    failure = Some(error);
                }
            }
        }
        Err(unknown_topic.or(failure).unwrap_or(Error::Closed))
    }
}
