//! Values as they travel in PostgreSQL's binary format.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts};

/// 2000-01-01 in microseconds since 1970-01-01 UTC: where PostgreSQL counts from.
const EPOCH_US: i64 = 946_684_800_000_000;
/// The first and last time that a timestamp holds, besides the infinities: 4714-11-24 BC and 294276-12-31.
const FIRST_US: i64 = -211_813_488_000_000_000;
const LAST_US: i64 = 9_223_371_331_199_999_999;

/// A timestamp, with or without time zone (then it is taken as UTC), in microseconds since 1970-01-01 UTC. Infinities
/// are kept as the ends of what it can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Micros(pub(super) i64);

impl<'a> FromSql<'a> for Micros {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(i64::from_be_bytes(raw.try_into()?).saturating_add(EPOCH_US)))
    }

    accepts!(TIMESTAMPTZ, TIMESTAMP);
}

impl ToSql for Micros {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i64(self.0.saturating_sub(EPOCH_US).clamp(FIRST_US, LAST_US));
        Ok(IsNull::No)
    }

    accepts!(TIMESTAMPTZ);
    tokio_postgres::types::to_sql_checked!();
}

/// Text, JSON or bytes as sent, without looking into it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw<'a>(pub(super) &'a [u8]);

impl<'a> FromSql<'a> for Raw<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw))
    }

    accepts!(TEXT, VARCHAR, BPCHAR, JSON, BYTEA, UNKNOWN);
}

/// Text that the server takes: it refuses the character NUL.
pub(super) fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// A number of ours as the server's signed one. Positions, numbers and epochs stay below 2^63.
pub(super) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A number of the server's as ours.
pub(super) fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// A shard's number as the server's smallint.
pub(super) fn small(shard: outhaul_core::message::ShardId) -> i16 {
    i16::try_from(shard.0).unwrap_or(i16::MAX)
}

/// An identifier in quotes.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text literal.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(us: i64) -> i64 {
        let mut out = BytesMut::new();
        Micros(us).to_sql(&Type::TIMESTAMPTZ, &mut out).unwrap();
        i64::from_be_bytes(out.as_ref().try_into().unwrap())
    }

    #[test]
    fn times_travel_and_infinities_do_not_break_anything() {
        assert_eq!(sent(EPOCH_US + 7), 7);
        assert_eq!(sent(i64::MAX), i64::MAX - EPOCH_US);
        assert_eq!(sent(i64::MIN), FIRST_US);
        assert_eq!(Micros::from_sql(&Type::TIMESTAMPTZ, &7i64.to_be_bytes()).unwrap().0, EPOCH_US + 7);
        assert_eq!(Micros::from_sql(&Type::TIMESTAMPTZ, &i64::MAX.to_be_bytes()).unwrap().0, i64::MAX);
        assert!(Micros::from_sql(&Type::TIMESTAMPTZ, b"short").is_err());
    }
}
