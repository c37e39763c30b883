//! What a route says of its messages on their way to a destination: another topic, a tag.

use std::sync::Arc;

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::{Message, parse_headers};
use outhaul_core::receipt::{Outcome, Receipt};
use outhaul_core::route::matches;
use serde_json::{Map, Value};

use crate::sink::{Acknowledged, Finding, Sink, SinkError, SinkInfo, Verified};

/// The header that is a RocketMQ message's tag.
const TAGS: &str = "tags";

/// What is different for the messages of some topics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// A topic, in which `*` stands for any run of characters.
    pub pattern: String,
    /// The topic under which they are delivered. A `*` stands for what the one `*` of the pattern stood for.
    pub topic: Option<String>,
    /// The value of header `tags` where a message has none.
    pub tag: Option<String>,
}

impl Rewrite {
    /// Whether a `*` in the new topic has exactly one in the pattern to stand for.
    pub fn is_clear(&self) -> bool {
        let stars = |text: &str| text.matches('*').count();
        self.topic.as_deref().is_none_or(|topic| stars(topic) == 0 || stars(topic) == 1 && stars(&self.pattern) == 1)
    }

    /// The topic under which a message of a topic that matches is delivered. None: its own.
    pub fn topic_for(&self, topic: &str) -> Option<String> {
        let new = self.topic.as_deref()?;
        let (Some((before, after)), Some((head, tail))) = (new.split_once('*'), self.pattern.split_once('*')) else {
            return Some(new.to_owned());
        };
        let middle = topic.strip_prefix(head)?.strip_suffix(tail)?;
        Some(format!("{before}{middle}{after}"))
    }
}

/// The destination, with what its routes say. Of several rewrites that match a topic the first that says something of it
/// counts. The log, receipts and `audit` keep the topic that the application wrote.
pub fn rewriting(sink: Arc<dyn Sink>, rewrites: Vec<Rewrite>) -> Arc<dyn Sink> {
    if rewrites.is_empty() { sink } else { Arc::new(Rewriting { sink, rewrites }) }
}

struct Rewriting {
    sink: Arc<dyn Sink>,
    rewrites: Vec<Rewrite>,
}

impl Rewriting {
    fn first<'a, T>(&'a self, topic: &str, of: impl Fn(&'a Rewrite) -> Option<T>) -> Option<T> {
        self.rewrites.iter().filter(|r| matches(&r.pattern, topic)).find_map(of)
    }

    fn topic(&self, topic: &str) -> Option<String> {
        self.first(topic, |r| r.topic_for(topic))
    }

    fn message(&self, message: &Arc<Message>) -> Arc<Message> {
        let topic = self.topic(&message.topic);
        let headers =
            self.first(&message.topic, |r| r.tag.as_deref()).and_then(|tag| with_tag(message.headers.as_deref(), tag));
        if topic.is_none() && headers.is_none() {
            return message.clone();
        }
        let mut changed = Message::clone(message);
        changed.topic = topic.unwrap_or(changed.topic);
        changed.headers = headers.or(changed.headers);
        Arc::new(changed)
    }
}

/// The headers with this tag. None: they have one, or cannot be read (which the message says).
fn with_tag(headers: Option<&str>, tag: &str) -> Option<String> {
    let pairs = headers.map_or(Ok(Vec::new()), parse_headers).ok()?;
    if pairs.iter().any(|(name, value)| name == TAGS && !value.is_empty()) {
        return None;
    }
    let mut map: Map<String, Value> = pairs.into_iter().map(|(name, value)| (name, Value::String(value))).collect();
    map.insert(TAGS.to_owned(), Value::String(tag.to_owned()));
    Some(Value::Object(map).to_string())
}

#[async_trait]
impl Sink for Rewriting {
    fn slotting(&self) -> Slotting {
        self.sink.slotting()
    }

    fn recall(&self, memory: &str) {
        self.sink.recall(memory);
    }

    fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        self.sink.memory(kept)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        self.sink.start().await
    }

    async fn look(&self) -> Result<SinkInfo, SinkError> {
        self.sink.look().await
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let messages: Vec<Arc<Message>> = messages.iter().map(|message| self.message(message)).collect();
        self.sink.send(slot, &messages).await
    }

    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        self.sink.verify(acknowledged).await
    }

    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        self.sink.prove(receipts).await
    }

    async fn examine(&self, topics: &[String]) -> Vec<Finding> {
        let mut topics: Vec<String> =
            topics.iter().map(|topic| self.topic(topic).unwrap_or_else(|| topic.clone())).collect();
        topics.sort();
        topics.dedup();
        self.sink.examine(&topics).await
    }

    async fn close(&self) {
        self.sink.close().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite(pattern: &str, topic: Option<&str>, tag: Option<&str>) -> Rewrite {
        Rewrite { pattern: pattern.into(), topic: topic.map(Into::into), tag: tag.map(Into::into) }
    }

    #[test]
    fn topics_change_with_what_the_star_stands_for() {
        for (pattern, to, topic, becomes) in [
            ("order-*", "orders", "order-created", "orders"),
            ("order-*", "shop.*.v1", "order-created", "shop.created.v1"),
            ("*-created", "new-*", "order-created", "new-order"),
            ("*", "all_*", "x", "all_x"),
            ("order", "orders", "order", "orders"),
        ] {
            assert_eq!(rewrite(pattern, Some(to), None).topic_for(topic).as_deref(), Some(becomes), "{pattern} {to}");
        }
        for (pattern, to, clear) in [("a", "b", true), ("a*", "b*", true), ("a*", "b", true), ("a", "b*", false)] {
            assert_eq!(rewrite(pattern, Some(to), None).is_clear(), clear, "{pattern} {to}");
        }
        assert!(!rewrite("a*b*", Some("*"), None).is_clear() && !rewrite("a*", Some("**"), None).is_clear());
    }

    #[test]
    fn a_tag_is_added_where_there_is_none() {
        let of = |headers, tag| with_tag(headers, tag);
        assert_eq!(of(None, "paid").as_deref(), Some(r#"{"tags":"paid"}"#));
        assert_eq!(of(Some(r#"{"a":"1"}"#), "paid").as_deref(), Some(r#"{"a":"1","tags":"paid"}"#));
        assert_eq!(of(Some(r#"{"tags":""}"#), "paid").as_deref(), Some(r#"{"tags":"paid"}"#));
        assert_eq!(of(Some(r#"{"tags":"own"}"#), "paid"), None);
        assert_eq!(of(Some("[1]"), "paid"), None, "a defect stays what it is");
    }
}
