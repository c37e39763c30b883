//! From what a database holds in an outbox row to a [`Row`], whatever is wrong with it.

use bytes::Bytes;
use outhaul_core::message::{Defect, Row, Seq, ShardId};

/// The columns of an outbox row as the database gave them. Text is bytes here: an adopted table may hold anything.
#[derive(Clone, Debug, Default)]
pub struct RawRow {
    /// `seq`.
    pub seq: u64,
    /// `shard`, 0 where there is no such column.
    pub shard: u16,
    /// `id`; NULL becomes an empty id.
    pub id: Option<Vec<u8>>,
    /// `topic`.
    pub topic: Option<Vec<u8>>,
    /// `msg_key`.
    pub key: Option<Vec<u8>>,
    /// `headers`.
    pub headers: Option<Vec<u8>>,
    /// `payload`, empty if it was not fetched; NULL becomes an empty payload.
    pub payload: Bytes,
    /// Size of `payload` in the database, bytes.
    pub payload_bytes: u64,
    /// `created_at`, microseconds since 1970-01-01 UTC.
    pub created_at_us: i64,
}

impl RawRow {
    /// The row. Text that is not UTF-8 gets replacement characters and [`Defect::NotUtf8`]; a NULL topic becomes an
    /// empty one; a payload above `max_message_bytes` is left out. Of several defects the row has the one that says
    /// most.
    pub fn into_row(self, max_message_bytes: u64) -> Row {
        let mut defect = None;
        let mut text = |bytes: Option<Vec<u8>>, column: &'static str| {
            bytes.map(|bytes| {
                String::from_utf8(bytes).unwrap_or_else(|e| {
                    defect.get_or_insert(Defect::NotUtf8(column));
                    String::from_utf8_lossy(e.as_bytes()).into_owned()
                })
            })
        };
        let id = text(self.id, "id").unwrap_or_default();
        let topic = text(self.topic, "topic");
        let key = text(self.key, "msg_key");
        let headers = text(self.headers, "headers");
        let too_large = self.payload_bytes > max_message_bytes;
        if topic.as_ref().is_none_or(String::is_empty) {
            defect = Some(Defect::NoTopic);
        }
        if too_large {
            // Above all others: the content of such a row is kept inside the server because of it.
            defect = Some(Defect::TooLarge { bytes: self.payload_bytes, limit: max_message_bytes });
        }
        Row {
            seq: Seq(self.seq),
            shard: ShardId(self.shard),
            id,
            topic: topic.unwrap_or_default(),
            key,
            headers,
            payload: if too_large { Bytes::new() } else { self.payload },
            created_at_us: self.created_at_us,
            defect,
        }
    }
}

/// Keeps an answer within its bytes: a single row may exceed them, two may not.
#[derive(Clone, Copy, Debug)]
pub struct ByteBudget {
    max_bytes: u64,
    used: u64,
    rows: u64,
}

impl ByteBudget {
    /// A budget of `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes: max_bytes as u64, used: 0, rows: 0 }
    }

    /// Whether a row with a payload of this size still fits; then it is counted.
    pub fn takes(&mut self, payload_bytes: u64) -> bool {
        let used = self.used.saturating_add(payload_bytes);
        let fits = self.rows == 0 || used <= self.max_bytes;
        if fits {
            (self.used, self.rows) = (used, self.rows + 1);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw() -> RawRow {
        RawRow {
            id: Some(b"i".into()),
            topic: Some(b"t".into()),
            payload: "abc".into(),
            payload_bytes: 3,
            ..RawRow::default()
        }
    }

    #[test]
    fn a_good_row_has_no_defect() {
        let row = RawRow { key: Some(b"k".into()), headers: Some(b"{}".into()), ..raw() }.into_row(3);
        assert_eq!((row.id.as_str(), row.topic.as_str(), row.key.as_deref()), ("i", "t", Some("k")));
        assert_eq!((row.payload.as_ref(), row.defect), (&b"abc"[..], None));
    }

    #[test]
    fn whatever_is_wrong_is_said_and_nothing_fails() {
        let not_utf8 = || Some(b"a\xffb".to_vec());
        for (row, column) in [
            (RawRow { id: not_utf8(), ..raw() }, "id"),
            (RawRow { topic: not_utf8(), ..raw() }, "topic"),
            (RawRow { key: not_utf8(), ..raw() }, "msg_key"),
            (RawRow { headers: not_utf8(), ..raw() }, "headers"),
        ] {
            assert_eq!(row.into_row(9).defect, Some(Defect::NotUtf8(column)));
        }
        assert_eq!(RawRow { id: not_utf8(), ..raw() }.into_row(9).id, "a\u{fffd}b");
        for topic in [None, Some(vec![])] {
            let row = RawRow { topic, key: not_utf8(), id: None, ..raw() }.into_row(9);
            assert_eq!((row.defect, row.topic.as_str(), row.id.as_str()), (Some(Defect::NoTopic), "", ""));
        }
        let row = RawRow { topic: None, ..raw() }.into_row(2);
        assert_eq!((row.defect, row.payload.len()), (Some(Defect::TooLarge { bytes: 3, limit: 2 }), 0));
    }

    #[test]
    fn the_first_row_always_fits() {
        let mut budget = ByteBudget::new(10);
        assert!(budget.takes(100));
        assert!(!budget.takes(0));
        let mut budget = ByteBudget::new(10);
        assert_eq!([4, 6, 1].map(|n| budget.takes(n)), [true, true, false]);
    }
}
