//! Where a broker has put a message: the detail of a receipt.
//!
//! `STATUS BROKER/TOPIC/QUEUE@OFFSET ID`, for instance
//! `SEND_OK broker-a/Orders/3@1207 7F00000100002A9F00000000000003E8`. A delayed message waits in a queue of the
//! broker's own first: `delayed` stands for its offset.

use std::fmt;
use std::str::FromStr;

use rocketmq_remoting::message::OffsetId;
use rocketmq_remoting::request::SendStatus;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) status: SendStatus,
    pub(super) broker: String,
    pub(super) topic: String,
    pub(super) queue_id: i32,
    /// None: delayed.
    pub(super) queue_offset: Option<i64>,
    pub(super) id: OffsetId,
}

const STATUSES: [(SendStatus, &str); 4] = [
    (SendStatus::Ok, "SEND_OK"),
    (SendStatus::FlushDiskTimeout, "FLUSH_DISK_TIMEOUT"),
    (SendStatus::FlushSlaveTimeout, "FLUSH_SLAVE_TIMEOUT"),
    (SendStatus::SlaveNotAvailable, "SLAVE_NOT_AVAILABLE"),
];

/// The status as RocketMQ's own clients write it.
pub(super) fn status_word(status: SendStatus) -> &'static str {
    STATUSES.into_iter().find(|(s, _)| *s == status).map_or("SEND_OK", |(_, word)| word)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}/{}@", status_word(self.status), self.broker, self.topic, self.queue_id)?;
        match self.queue_offset {
            Some(offset) => write!(f, "{offset}")?,
            None => f.write_str("delayed")?,
        }
        write!(f, " {}", self.id)
    }
}

impl FromStr for Place {
    type Err = ();

    /// Broker names may have slashes and spaces; topics have neither.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (status, rest) = text.split_once(' ').ok_or(())?;
        let (status, _) = STATUSES.into_iter().find(|(_, word)| *word == status).ok_or(())?;
        let (place, id) = rest.rsplit_once(' ').ok_or(())?;
        let (place, offset) = place.rsplit_once('@').ok_or(())?;
        let (place, queue_id) = place.rsplit_once('/').ok_or(())?;
        let (broker, topic) = place.rsplit_once('/').ok_or(())?;
        let queue_offset = match offset {
            "delayed" => None,
            number => Some(number.parse().map_err(drop)?),
        };
        Ok(Self {
            status,
            broker: broker.to_owned(),
            topic: topic.to_owned(),
            queue_id: queue_id.parse().map_err(drop)?,
            queue_offset,
            id: id.parse().map_err(drop)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_back_what_it_wrote() {
        for text in [
            "SEND_OK broker-a/Orders/3@1207 7F00000100002A9F00000000000003E8",
            "FLUSH_DISK_TIMEOUT a b/c@d/%RETRY%x/0@0 7F00000100002A9F0000000000000000",
            "SLAVE_NOT_AVAILABLE a/T/1@delayed 20010DB800000000000000000000000100002A9F00000000000003E8",
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
        }
        for text in ["", "SEND_OK", "OK a/T/1@2 7F00000100002A9F00000000000003E8", "SEND_OK a/T/x@2 7F", "duplicate"] {
            assert_eq!(text.parse::<Place>(), Err(()), "{text}");
        }
    }
}
