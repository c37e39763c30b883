//! SEND_MESSAGE_V2. Source: `SendMessageRequestHeaderV2`, `SendMessageResponseHeader` of RocketMQ 4.9.4 and 5.3.3.

use super::{Request, answer};
use crate::code::{RequestCode, ResponseCode};
use crate::command::{Command, Version};
use crate::error::Error;
use crate::message::{Compression, Message, MessageError, OffsetId, check_group, compress, name, sys_flag};

/// A name that no topic has: sent as the default topic, so that a topic that does not exist is refused with
/// TOPIC_NOT_EXIST instead of being created on whichever broker got its first message (rocketmq.md B.5).
pub const UNKNOWN_DEFAULT_TOPIC: &str = "%NONE%";

/// How a message is to be delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// At once, or as its delay says.
    #[default]
    Plain,
    /// As a half message: not before END_TRANSACTION commits it.
    Half,
}

/// Sends one message to one queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendMessage {
    /// The sender's group; for half messages the group that is asked what became of it.
    pub producer_group: String,
    /// What is sent.
    pub message: Message,
    /// The queue, from 0.
    pub queue_id: i32,
    /// The time, in ms since 1970.
    pub born_at_ms: i64,
    /// At once, or as a half message.
    pub delivery: Delivery,
    /// How to compress the body; done only if it makes it smaller. Java compresses from 4,096 bytes, with zlib.
    pub compression: Option<Compression>,
    /// The broker's name, for proxies of 5.x. Brokers of 4.9 ignore it.
    pub broker_name: Option<String>,
}

impl Request for SendMessage {
    type Answer = SendAnswer;
    const CODE: RequestCode = RequestCode::SendMessageV2;

    /// # Errors
    /// [`MessageError::Group`], [`MessageError::PropertiesTooLarge`], [`MessageError::DelayedHalf`]. The body's size is
    /// [`Message::check_size`]'s matter: its limit is the broker's.
    fn command(&self) -> Result<Command, Error> {
        check_group(&self.producer_group)?;
        let mut flags = 0;
        let mut body = self.message.body().clone();
        if let Some(compression) = self.compression {
            let packed = compress(&body, compression).map_err(|e| MessageError::Compression(e.to_string()))?;
            if packed.len() < body.len() {
                body = packed.into();
                flags |= compression.sys_flag();
            }
        }
        let properties = match self.delivery {
            Delivery::Plain => self.message.properties().encode()?.to_owned(),
            Delivery::Half => {
                if self.message.is_delayed() {
                    return Err(MessageError::DelayedHalf.into());
                }
                flags |= sys_flag::TRANSACTION_PREPARED;
                let mut properties = self.message.properties().clone();
                properties.set(name::TRANSACTION, "true")?;
                properties.set(name::PRODUCER_GROUP, &self.producer_group)?;
                properties.encode()?.to_owned()
            }
        };
        Ok(header(Self::CODE, &self.producer_group, self.message.topic(), self.queue_id, self.born_at_ms)
            .with("f", flags)
            .with("h", self.message.flag())
            .with("i", properties)
            .with("m", false)
            .with_optional("n", self.broker_name.as_ref())
            .with_body(body))
    }

    fn answer(&self, answer: Command) -> Result<SendAnswer, Error> {
        SendAnswer::read(Self::CODE, answer)
    }
}

/// The fields that a single message and a batch have in common.
pub(super) fn header(code: RequestCode, group: &str, topic: &str, queue_id: i32, born_at_ms: i64) -> Command {
    Command::request(code)
        .with("a", group)
        .with("b", topic)
        .with("c", UNKNOWN_DEFAULT_TOPIC)
        .with("d", 4)
        .with("e", queue_id)
        .with("g", born_at_ms)
        .with("j", 0)
        .with("k", false)
}

/// What the broker says of a message that it has stored. With any of them it will be delivered if the broker lives; what
/// it would survive is told by the broker's configuration (rocketmq.md B.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SendStatus {
    /// As safe as the broker is configured.
    Ok,
    /// The flush to disk did not end within syncFlushTimeout.
    FlushDiskTimeout,
    /// The replica did not acknowledge within slaveTimeout.
    FlushSlaveTimeout,
    /// No replica is near enough.
    SlaveNotAvailable,
}

/// The answer to a message or a batch that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendAnswer {
    /// How safe it is.
    pub status: SendStatus,
    /// The broker's explanation, if it gave one.
    pub remark: Option<String>,
    /// The ids that the broker gave, in the order of the messages. A topic that 5.x stores as batches has one for all.
    pub offset_ids: Vec<OffsetId>,
    /// The queue: of a half message the one that it is for.
    pub queue_id: i32,
    /// Where the (first) message is in its queue: of a half message in the queue of halfs. The others of a batch follow.
    pub queue_offset: i64,
    /// Of a single message on 5.x: its unique key.
    pub transaction_id: Option<String>,
    /// The version of the broker that answered.
    pub broker_version: Version,
}

impl SendAnswer {
    pub(super) fn read(request: RequestCode, answer: Command) -> Result<Self, Error> {
        let status = match answer.response_code() {
            ResponseCode::Success => SendStatus::Ok,
            ResponseCode::FlushDiskTimeout => SendStatus::FlushDiskTimeout,
            ResponseCode::FlushSlaveTimeout => SendStatus::FlushSlaveTimeout,
            ResponseCode::SlaveNotAvailable => SendStatus::SlaveNotAvailable,
            _ => return Err(answer::refused(request, &answer)),
        };
        let unreadable = Error::Answer { request, what: "msgId" };
        let ids = answer.ext.get("msgId").unwrap_or_default();
        let Ok(offset_ids) = ids.split(',').map(str::parse).collect::<Result<Vec<OffsetId>, _>>() else {
            return Err(unreadable);
        };
        Ok(Self {
            status,
            offset_ids,
            queue_id: answer::number(request, &answer, "queueId")?,
            queue_offset: answer::number(request, &answer, "queueOffset")?,
            transaction_id: answer.ext.get("transactionId").map(str::to_owned),
            broker_version: answer.version(),
            remark: answer.remark,
        })
    }

    /// The physical end that a flush has to pass for all of it to be on disk: the largest offset of its ids.
    #[must_use]
    pub fn last_commit_log_offset(&self) -> Option<i64> {
        self.offset_ids.iter().map(|id| id.commit_log_offset).max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> SendMessage {
        SendMessage {
            producer_group: "group".into(),
            message: Message::new("Orders", "body").unwrap().with_unique_key("u").unwrap(),
            queue_id: 2,
            born_at_ms: 5,
            delivery: Delivery::Plain,
            compression: None,
            broker_name: None,
        }
    }

    #[test]
    fn fields_are_those_of_the_v2_header() {
        let command = request().command().unwrap();
        let fields: Vec<(&str, &str)> = command.ext.iter().collect();
        assert_eq!(
            fields,
            [
                ("a", "group"),
                ("b", "Orders"),
                ("c", "%NONE%"),
                ("d", "4"),
                ("e", "2"),
                ("g", "5"),
                ("j", "0"),
                ("k", "false"),
                ("f", "0"),
                ("h", "0"),
                ("i", "UNIQ_KEY\u{1}u\u{2}"),
                ("m", "false"),
            ]
        );
        assert_eq!((command.code, &command.body[..]), (310, &b"body"[..]));
    }

    #[test]
    fn a_half_message_has_flag_and_properties() {
        let command = SendMessage { delivery: Delivery::Half, ..request() }.command().unwrap();
        assert_eq!(command.ext.get("f"), Some("4"));
        assert_eq!(command.ext.get("i"), Some("UNIQ_KEY\u{1}u\u{2}TRAN_MSG\u{1}true\u{2}PGROUP\u{1}group\u{2}"));
        let delayed = SendMessage {
            message: request().message.with_delay_level(1).unwrap(),
            delivery: Delivery::Half,
            ..request()
        };
        assert!(matches!(delayed.command(), Err(Error::Message(MessageError::DelayedHalf))));
        let timed = SendMessage { message: request().message.with_deliver_at_ms(9), ..delayed };
        assert!(matches!(timed.command(), Err(Error::Message(MessageError::DelayedHalf))));
    }

    #[test]
    fn a_body_is_compressed_only_if_that_helps() {
        let small = SendMessage { compression: Some(Compression::Zlib), ..request() }.command().unwrap();
        assert_eq!((small.ext.get("f"), &small.body[..]), (Some("0"), &b"body"[..]));
        let message = Message::new("Orders", vec![7; 5_000]).unwrap();
        let large = SendMessage { message, compression: Some(Compression::Lz4), ..request() }.command().unwrap();
        assert_eq!(large.ext.get("f"), Some("257"));
        assert!(large.body.len() < 100);
    }

    #[test]
    fn an_answer_is_stored_or_refused() {
        let answer = |code| {
            Command::answer_to(&request().command().unwrap(), code, Some("why".into()))
                .with("msgId", "7F00000100002A9F00000000000003E8,7F00000100002A9F0000000000000BB8")
                .with("queueId", 2)
                .with("queueOffset", 40)
        };
        let read = request().answer(answer(ResponseCode::FlushSlaveTimeout)).unwrap();
        assert_eq!((read.status, read.queue_offset), (SendStatus::FlushSlaveTimeout, 40));
        assert_eq!((read.offset_ids.len(), read.last_commit_log_offset()), (2, Some(3_000)));
        assert_eq!(read.remark.as_deref(), Some("why"));
        let busy = request().answer(answer(ResponseCode::SystemBusy)).unwrap_err();
        assert_eq!(busy.to_string(), "SEND_MESSAGE_V2 (310): SYSTEM_BUSY (2): why");
        let nameless = answer(ResponseCode::Success).with("msgId", "");
        assert!(matches!(request().answer(nameless), Err(Error::Answer { what: "msgId", .. })));
        let crooked = answer(ResponseCode::Success).with("queueOffset", "x");
        assert!(matches!(request().answer(crooked), Err(Error::Answer { what: "queueOffset", .. })));
    }
}
