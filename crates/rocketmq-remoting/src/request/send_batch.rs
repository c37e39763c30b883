//! SEND_BATCH_MESSAGE. Source: `SendMessageRequestHeaderV2`, `MessageBatch` of RocketMQ 4.9.4.

use super::Request;
use super::send_message::{SendAnswer, header};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::{Batch, Properties, check_group, name};

/// Sends several messages to one queue, which are stored next to each other or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendBatch {
    /// The sender's group.
    pub producer_group: String,
    /// What is sent.
    pub batch: Batch,
    /// The queue, from 0.
    pub queue_id: i32,
    /// The time, in ms since 1970.
    pub born_at_ms: i64,
    /// The broker's name, for proxies of 5.x. Brokers of 4.9 ignore it.
    pub broker_name: Option<String>,
}

impl Request for SendBatch {
    type Answer = SendAnswer;
    const CODE: RequestCode = RequestCode::SendBatchMessage;

    /// # Errors
    /// [`crate::message::MessageError::Group`].
    fn command(&self) -> Result<Command, Error> {
        check_group(&self.producer_group)?;
        // The broker waits as the outer properties say, and appends them to each message (rocketmq.md F.1).
        let mut properties = Properties::default();
        properties.set(name::WAIT, if self.batch.waits_stored() { "true" } else { "false" })?;
        Ok(header(Self::CODE, &self.producer_group, self.batch.topic(), self.queue_id, self.born_at_ms)
            .with("f", 0)
            .with("h", 0)
            .with("i", properties.encode()?)
            .with("m", true)
            .with_optional("n", self.broker_name.as_ref())
            .with_body(self.batch.body().clone()))
    }

    /// # Errors
    /// Besides the usual ones [`Error::Answer`] if there is neither one id for each message nor one for all.
    fn answer(&self, answer: Command) -> Result<SendAnswer, Error> {
        let read = SendAnswer::read(Self::CODE, answer)?;
        if read.offset_ids.len() == self.batch.count() || read.offset_ids.len() == 1 {
            Ok(read)
        } else {
            Err(Error::Answer { request: Self::CODE, what: "number of ids in msgId" })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::ResponseCode;
    use crate::message::{BatchBuilder, Message};

    #[test]
    fn a_batch_says_how_to_wait_and_counts_its_ids() {
        let mut builder = BatchBuilder::new(1_000);
        for key in ["1", "2", "3"] {
            let message = Message::new("Orders", "body").unwrap().with_unique_key(key).unwrap().with_wait_stored(false);
            assert!(builder.push(&message).unwrap());
        }
        let request = SendBatch {
            producer_group: "group".into(),
            batch: builder.finish().unwrap(),
            queue_id: 1,
            born_at_ms: 5,
            broker_name: Some("a".into()),
        };
        let command = request.command().unwrap();
        assert_eq!((command.code, command.ext.get("m"), command.ext.get("n")), (320, Some("true"), Some("a")));
        assert_eq!(command.ext.get("i"), Some("WAIT\u{1}false\u{2}"));
        let ids = |n: usize| vec!["7F00000100002A9F00000000000003E8"; n].join(",");
        let answer = |n| {
            Command::answer_to(&command, ResponseCode::Success, None)
                .with("msgId", ids(n))
                .with("queueId", 1)
                .with("queueOffset", 0)
        };
        assert!(request.answer(answer(3)).is_ok());
        assert!(request.answer(answer(1)).is_ok());
        assert!(matches!(request.answer(answer(2)), Err(Error::Answer { .. })));
    }
}
