//! GET_BROKER_RUNTIME_INFO. Source: `KVTable`, `AdminBrokerProcessor.prepareRuntimeInfo`, and
//! `humanReadableByteCount` of RocketMQ 4.9.4 and 5.3.3.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::{Request, answer};
use crate::code::RequestCode;
use crate::command::{Command, Version};
use crate::error::Error;

/// Asks a broker for its counters and positions. It costs the broker 2 to 15 ms. 4.9 refuses with SYSTEM_ERROR in the
/// first second after its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetRuntimeInfo;

impl Request for GetRuntimeInfo {
    type Answer = RuntimeInfo;
    const CODE: RequestCode = RequestCode::GetBrokerRuntimeInfo;

    fn command(&self) -> Result<Command, Error> {
        Ok(Command::request(Self::CODE))
    }

    fn answer(&self, answer: Command) -> Result<RuntimeInfo, Error> {
        #[derive(Deserialize)]
        struct Body {
            #[serde(default)]
            table: BTreeMap<String, Value>,
        }
        answer::success(Self::CODE, &answer)?;
        let body: Body = answer::json(Self::CODE, &answer)?;
        let table = body
            .table
            .into_iter()
            .map(|(key, value)| match value {
                Value::String(text) => (key, text),
                other => (key, other.to_string()),
            })
            .collect();
        Ok(RuntimeInfo { table, broker_version: answer.version() })
    }
}

/// A broker's counters and positions at about one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeInfo {
    table: BTreeMap<String, String>,
    /// The version of the broker that answered.
    pub broker_version: Version,
}

impl RuntimeInfo {
    /// One of them, as the broker writes it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.table.get(key).map(String::as_str)
    }

    /// The end of the commit log, in bytes from its beginning.
    #[must_use]
    pub fn commit_log_max_offset(&self) -> Option<i64> {
        self.get("commitLogMaxOffset")?.parse().ok()
    }

    /// The most that may not be flushed yet, in bytes. The broker rounds it to a tenth of a unit, so half a tenth is
    /// added.
    #[must_use]
    pub fn unflushed_bytes_at_most(&self) -> Option<u64> {
        byte_count_at_most(self.get("remainHowManyDataToFlush")?)
    }

    /// A commit-log offset up to which everything is flushed for certain: more may be (rocketmq.md F.2). A message is
    /// covered if this is greater than its offset, since a flush writes whole messages. The broker says that it called
    /// msync, and does not notice when that fails.
    #[must_use]
    pub fn flushed_at_least(&self) -> Option<i64> {
        let unflushed = i64::try_from(self.unflushed_bytes_at_most()?).unwrap_or(i64::MAX);
        Some(self.commit_log_max_offset()?.saturating_sub(unflushed).max(0))
    }
}

/// Reads `475 B`, `92.8 KiB` or, if the broker's locale writes it so, `92,8 KiB`, rounded up as far as the text allows.
fn byte_count_at_most(text: &str) -> Option<u64> {
    let (number, unit) = text.trim().split_once(' ')?;
    let prefix = unit.strip_suffix('B')?;
    let (base, prefix) = match prefix.strip_suffix('i') {
        Some(prefix) => (1_024_u128, prefix),
        None => (1_000, prefix),
    };
    let power = if prefix.is_empty() { 0 } else { 1 + "KMGTPE".find(&prefix.to_ascii_uppercase())? };
    let size = base.checked_pow(u32::try_from(power).ok()?)?;
    let (whole, tenth) = match number.split_once(['.', ',']) {
        Some((whole, tenth)) if tenth.len() == 1 => (whole, tenth),
        Some(_) => return None,
        None => (number, "0"),
    };
    let whole: u128 = whole.parse::<u64>().ok()?.into();
    let tenths = whole * 10 + u128::from(tenth.parse::<u8>().ok()?);
    // Counts below one unit are exact.
    let twentieths = if power == 0 { tenths * 2 } else { tenths * 2 + 1 };
    u64::try_from((twentieths * size).div_ceil(20)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::ResponseCode;

    fn info(body: &'static str) -> RuntimeInfo {
        let command = GetRuntimeInfo.command().unwrap();
        GetRuntimeInfo.answer(Command::answer_to(&command, ResponseCode::Success, None).with_body(body)).unwrap()
    }

    #[test]
    fn counts_are_rounded_up() {
        for (text, bytes) in [
            ("0 B", Some(0)),
            ("475 B", Some(475)),
            ("1.0 KiB", Some(1_076)), // 1,075.2
            ("92.8 KiB", Some(95_079)),
            ("92,8 KiB", Some(95_079)),
            ("1.5 MiB", Some(1_625_293)),
            ("1.0 kB", Some(1_050)),
            ("", None),
            ("1", None),
            ("x B", None),
            ("1.23 KiB", None),
            ("-1 B", None),
            ("1 XiB", None),
            ("99999999999999999999 B", None),
        ] {
            assert_eq!(byte_count_at_most(text), bytes, "{text}");
        }
    }

    #[test]
    fn the_flushed_bound_is_the_end_less_what_may_remain() {
        let some = info(r#"{"table":{"commitLogMaxOffset":"100000","remainHowManyDataToFlush":"1.0 KiB","n":5}}"#);
        assert_eq!(some.flushed_at_least(), Some(98_924));
        assert_eq!(some.get("n"), Some("5"));
        let little = info(r#"{"table":{"commitLogMaxOffset":"3275","remainHowManyDataToFlush":"3.2 KiB"}}"#);
        assert_eq!(little.flushed_at_least(), Some(0));
        assert_eq!(info(r#"{"table":{"commitLogMaxOffset":"100000"}}"#).flushed_at_least(), None);
        assert_eq!(info("{}").commit_log_max_offset(), None);
    }

    proptest! {
        /// Written as Java writes it, no count is ever read as less than it was.
        #[test]
        fn never_too_little(bytes in prop_oneof![0u64..5_000, 0u64..(1 << 50)]) {
            let text = if bytes < 1_024 {
                format!("{bytes} B")
            } else {
                let power = (bytes as f64).log(1_024.0) as usize;
                format!("{:.1} {}iB", bytes as f64 / 1_024f64.powi(power as i32), &"KMGTPE"[power - 1..power])
            };
            prop_assert!(byte_count_at_most(&text).unwrap() >= bytes, "{}", text);
        }

        #[test]
        fn any_text_never_panics(text in "[0-9.,]{0,25} ?[KMEik]{0,3}B?") {
            let _ = byte_count_at_most(&text);
        }
    }
}
