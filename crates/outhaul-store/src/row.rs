//! From what a database holds in an outbox row to a [`Row`], whatever is wrong with it.

use bytes::Bytes;
use outhaul_core::message::{Defect, Row, Seq, ShardId};
pub use outhaul_core::outbox::HEADERS_MAX_BYTES;

/// What a row may hold, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimits {
    /// Payloads above this are not fetched.
    pub message_bytes: u64,
    /// Headers above this are not fetched.
    pub headers_bytes: u64,
}

impl RowLimits {
    /// The limits where the server has none of its own.
    pub const fn new(max_message_bytes: u64) -> Self {
        Self { message_bytes: max_message_bytes, headers_bytes: HEADERS_MAX_BYTES }
    }

    /// Bytes that are fetched of a row with a payload and headers of these sizes.
    pub const fn fetched(&self, payload_bytes: u64, headers_bytes: u64) -> u64 {
        let payload = if payload_bytes > self.message_bytes { 0 } else { payload_bytes };
        let headers = if headers_bytes > self.headers_bytes { 0 } else { headers_bytes };
        payload.saturating_add(headers)
    }
}

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
    /// `headers`; None if they were not fetched.
    pub headers: Option<Vec<u8>>,
    /// Size of `headers` in the database, bytes.
    pub headers_bytes: u64,
    /// `payload`, empty if it was not fetched; NULL becomes an empty payload.
    pub payload: Bytes,
    /// Size of `payload` in the database, bytes.
    pub payload_bytes: u64,
    /// `created_at`, microseconds since 1970-01-01 UTC.
    pub created_at_us: i64,
}

impl RawRow {
    /// The row. Text that is not UTF-8 gets replacement characters and [`Defect::NotUtf8`]; a NULL topic becomes an
    /// empty one; payload and headers above their limits are left out. Of several defects the row has the one that
    /// says most.
    pub fn into_row(self, limits: RowLimits) -> Row {
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
        let headers_too_large = self.headers_bytes > limits.headers_bytes;
        let headers = text(self.headers.filter(|_| !headers_too_large), "headers");
        let too_large = self.payload_bytes > limits.message_bytes;
        if headers_too_large {
            let why = format!("they have {} bytes, the limit is {}", self.headers_bytes, limits.headers_bytes);
            defect.get_or_insert(Defect::BadHeaders(why));
        }
        if topic.as_ref().is_none_or(String::is_empty) {
            defect = Some(Defect::NoTopic);
        }
        if too_large {
            // Above all others: the content of such a row is kept inside the server because of it.
            defect = Some(Defect::TooLarge { bytes: self.payload_bytes, limit: limits.message_bytes });
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

    /// Whether a row with payload and headers of this size still fits; then it is counted.
    pub fn takes(&mut self, row_bytes: u64) -> bool {
        let used = self.used.saturating_add(row_bytes);
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
        let row = RawRow { key: Some(b"k".into()), headers: Some(b"{}".into()), ..raw() }.into_row(RowLimits::new(3));
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
            assert_eq!(row.into_row(RowLimits::new(9)).defect, Some(Defect::NotUtf8(column)));
        }
        assert_eq!(RawRow { id: not_utf8(), ..raw() }.into_row(RowLimits::new(9)).id, "a\u{fffd}b");
        for topic in [None, Some(vec![])] {
            let row = RawRow { topic, key: not_utf8(), id: None, ..raw() }.into_row(RowLimits::new(9));
            assert_eq!((row.defect, row.topic.as_str(), row.id.as_str()), (Some(Defect::NoTopic), "", ""));
        }
        let row = RawRow { topic: None, ..raw() }.into_row(RowLimits::new(2));
        assert_eq!((row.defect, row.payload.len()), (Some(Defect::TooLarge { bytes: 3, limit: 2 }), 0));
    }

    #[test]
    fn large_headers_are_not_kept() {
        let limits = RowLimits { message_bytes: 9, headers_bytes: 2 };
        let with =
            |headers: &str| RawRow { headers: Some(headers.into()), headers_bytes: headers.len() as u64, ..raw() };
        assert_eq!(with("{}").into_row(limits).headers.as_deref(), Some("{}"));
        let row = with("{ }").into_row(limits);
        assert_eq!((row.headers, row.payload.as_ref()), (None, &b"abc"[..]));
        assert_eq!(row.defect, Some(Defect::BadHeaders("they have 3 bytes, the limit is 2".into())));
        assert_eq!([limits.fetched(9, 2), limits.fetched(10, 2), limits.fetched(9, 3)], [11, 2, 9]);
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
