//! Events as log lines. No payload, key value or secret is ever among them.

use std::collections::HashMap;

use outhaul_core::destination::NO_ROUTE;
use outhaul_core::instance::Event;
use outhaul_core::trouble::Trouble;
use outhaul_store::{StoreError, StoreErrorKind};
use tokio::time::Instant;

use crate::clock::wall_us;
use crate::repeats::Repeats;
use crate::watch::{Stall, Watch};

/// What the writing of a checkpoint is called in the log.
pub(crate) const CHECKPOINT: &str = "checkpoint";

/// Writes the log of one outbox.
pub(crate) struct Log {
    outbox: String,
    destinations: Vec<String>,
    /// Failures in a row by what was being done: the first is logged, then every power of two.
    failures: HashMap<&'static str, Failing>,
    /// Messages that are set aside or stand out otherwise, by code and destination: there may be very many of a kind.
    repeats: Repeats<(&'static str, String)>,
    watch: Option<Watch>,
    /// What does not move, as it was told last, and since when (microseconds of the wall clock).
    stalled: Option<Trouble>,
}

/// Calls of the database that fail one after the other.
struct Failing {
    kind: StoreErrorKind,
    /// How many in a row were of this kind.
    count: u64,
    /// The newest one's text.
    message: String,
}

impl Log {
    pub(crate) fn new(outbox: &str, destinations: &[String], watch: Option<Watch>) -> Self {
        Self {
            outbox: outbox.to_owned(),
            destinations: destinations.to_vec(),
            failures: HashMap::new(),
            repeats: Repeats::default(),
            watch,
            stalled: None,
        }
    }

    /// What does not move that should. It is logged when that begins, changes and ends.
    pub(crate) fn stalls(&mut self, stalls: &[Stall]) {
        // A lane whose destination is down has a trouble of its own, and a line of its own.
        let internal = stalls.iter().find(|s| s.part != "relay" && !s.part.starts_with("lane "));
        let outbox = self.outbox.as_str();
        match (internal, &mut self.stalled) {
            (None, stalled) => {
                if stalled.take().is_some() {
                    tracing::info!(outbox, "everything moves again");
                }
            }
            (Some(stall), stalled) => {
                let text = format!("{}: {}", stall.part, stall.why);
                let age_us = i64::try_from(stall.age.as_micros()).unwrap_or(i64::MAX);
                let since_us = stalled.as_ref().map_or_else(|| wall_us().saturating_sub(age_us), |t| t.since_us);
                if stalled.as_ref().is_none_or(|t| t.text != text) {
                    tracing::error!(outbox, code = stall.code, part = stall.part, "does not move: {}", stall.why);
                }
                let code = stall.code.to_owned();
                *stalled = Some(Trouble { destination: String::new(), shards: vec![], since_us, code, text });
            }
        }
    }

    /// The same for the heartbeat.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.stalled.clone()
    }

    /// A call of the database failed.
    pub(crate) fn failed(&mut self, doing: &'static str, error: &StoreError) {
        let new = || Failing { kind: error.kind, count: 0, message: String::new() };
        let failing = self.failures.entry(doing).or_insert_with(new);
        if failing.kind != error.kind {
            *failing = new();
        }
        failing.count += 1;
        failing.message.clone_from(&error.message);
        if failing.count.is_power_of_two() {
            let (code, remedy, outbox) = (error.kind.code(), error.kind.remedy(), &self.outbox);
            tracing::warn!(outbox, code, failures = failing.count, remedy, "{doing}: {}", error.message);
        }
    }

    /// What the database says to a call that has failed since it last succeeded: to a checkpoint, if there is such a one.
    pub(crate) fn database_failure(&self) -> Option<String> {
        let (doing, failing) = self.failures.iter().max_by_key(|(doing, f)| (**doing == CHECKPOINT, f.count))?;
        Some(format!("{doing}: {} {}", failing.kind.code(), failing.message))
    }

    /// A call of the database succeeded.
    pub(crate) fn succeeded(&mut self, doing: &'static str) {
        if let Some(Failing { count, .. }) = self.failures.remove(doing) {
            tracing::info!(outbox = self.outbox, failures = count, "{doing}: works again");
        }
    }

    /// How many messages a line about this one is to count. None: it is counted by a later line.
    fn count(&mut self, code: &'static str, destination: &str) -> Option<u64> {
        self.repeats.count(Instant::now(), (code, destination.to_owned()), 1)
    }

    /// Counts what came after the last line of its kind and has had no line of its own for long, or (with `all`) at all.
    pub(crate) fn rest(&mut self, all: bool) {
        for ((code, destination), messages) in self.repeats.rest(Instant::now(), all) {
            tracing::warn!(outbox = self.outbox, destination, code, messages, "more of the same");
        }
    }

    /// One event: its line and its metric.
    pub(crate) fn event(&mut self, event: &Event) {
        if let Some(watch) = &self.watch {
            watch.counts().event(event);
        }
        if let Some((code, destination)) = self.repeated(event) {
            if let Some(messages) = self.count(code, &destination) {
                self.of_message(event, &destination, messages);
            }
            return;
        }
        let outbox = self.outbox.as_str();
        let name = |d: &outhaul_core::destination::DestinationIndex| {
            self.destinations.get(usize::from(d.0)).map_or("?", String::as_str)
        };
        match event {
            Event::Acquired { shard, epoch } => tracing::info!(outbox, %shard, %epoch, "shard acquired"),
            Event::Running { shard, epoch, log_end } => tracing::info!(outbox, %shard, %epoch, %log_end, "shard runs"),
            Event::HandingOver { shard } => tracing::info!(outbox, %shard, "shard is handed over"),
            Event::Released { shard } => tracing::info!(outbox, %shard, "shard released"),
            Event::Fenced { shard, epoch } => {
                tracing::warn!(outbox, %shard, %epoch, code = "OUT-4006", "the lease is another owner's: all that was held of the shard is forgotten");
            }
            Event::Mismatch { shard } => {
                tracing::warn!(outbox, %shard, code = "OUT-4007", "the database is not as this owner left it (rows removed by others, TRUNCATE, a restored backup): the shard is recovered anew");
            }
            Event::LogWentBack { shard, from, to } => {
                tracing::warn!(outbox, %shard, %from, %to, code = "OUT-4011", "the log is shorter than before: a backup was restored or a fail-over lost commits; rows are delivered again under their ids");
            }
            Event::LogGap { shard, destination, from, to } => {
                tracing::error!(outbox, %shard, destination = name(destination), %from, %to, code = "OUT-4012", "the log lacks these positions");
            }
            Event::NotStarted { destination, reason } => {
                tracing::warn!(
                    outbox,
                    destination = name(destination),
                    code = reason.code,
                    "destination is down: {}",
                    reason.text
                );
            }
            Event::Started { destination } => {
                tracing::info!(outbox, destination = name(destination), "destination is up again");
            }
            Event::NotVerified { shard, destination, reason } => {
                tracing::warn!(outbox, %shard, destination = name(destination), code = reason.code, "nothing is sent until it is known what the destination still has of what it acknowledged: {}", reason.text);
            }
            Event::Forgotten { shard, destination, count, first, last } => {
                tracing::warn!(outbox, %shard, destination = name(destination), count, %first, %last, code = "OUT-4015", "the destination does not have what it acknowledged: it is sent again");
            }
            Event::ForgottenTooMany { shard, destination, limit } => {
                tracing::error!(outbox, %shard, destination = name(destination), limit, code = "OUT-4016", "the destination does not have more than max_forgotten of the messages that it acknowledged: the lane waits");
            }
            Event::DestinationDown { shard, destination, reason } => {
                tracing::warn!(outbox, %shard, destination = name(destination), code = reason.code, "destination is down: {}", reason.text);
            }
            Event::DestinationUp { shard, destination } => {
                tracing::info!(outbox, %shard, destination = name(destination), "destination is up again");
            }
            Event::Acted { shard, number, verb, destination, refused: Some(why), .. } => {
                let (verb, destination) = (verb.as_str(), destination.as_deref().unwrap_or_default());
                tracing::warn!(outbox, %shard, act = %number, verb, destination, code = "OUT-4018", "an operator's act cannot be carried out: {why}");
            }
            Event::Acted { shard, number, verb, destination, done, left, refused: None } => {
                let (verb, destination) = (verb.as_str(), destination.as_deref().unwrap_or_default());
                tracing::info!(outbox, %shard, act = %number, verb, destination, done, left, "an operator's act is carried out");
            }
            Event::OtherConfiguration { owners } if owners.is_empty() => {
                tracing::info!(outbox, "all instances have the same routes and destinations");
            }
            Event::OtherConfiguration { owners } => {
                tracing::error!(
                    outbox,
                    others = owners.join(" "),
                    code = "OUT-4021",
                    "these instances have other routes or destinations than this one: where a message goes depends on which of them moves it"
                );
            }
            Event::CommitUnknown => {
                tracing::warn!(
                    outbox,
                    code = "OUT-1004",
                    "the answer to a COMMIT was lost: asking the database whether it was applied"
                );
            }
            Event::CommitKnown { applied } => {
                tracing::info!(outbox, applied, "the database answered for the lost COMMIT")
            }
            other => tracing::info!(outbox, "{other:?}"),
        }
    }
    /// Code and destination of what may be said of very many messages.
    fn repeated(&self, event: &Event) -> Option<(&'static str, String)> {
        match event {
            Event::NoRoute { .. } => Some(("OUT-4001", NO_ROUTE.to_owned())),
            Event::RepeatedId { .. } => Some(("OUT-4013", String::new())),
            Event::Dead { destination, reason, .. } => {
                let name = self.destinations.get(usize::from(destination.0));
                Some((reason.code, name.cloned().unwrap_or_default()))
            }
            _ => None,
        }
    }

    /// A line about one message, which stands for so many.
    fn of_message(&self, event: &Event, destination: &str, messages: u64) {
        let outbox = self.outbox.as_str();
        match event {
            Event::NoRoute { shard, position, topic } => {
                tracing::warn!(outbox, %shard, %position, topic, code = "OUT-4001", messages, "no route names a destination for this topic: parked under -");
            }
            Event::RepeatedId { id, seq } => {
                tracing::warn!(outbox, id, %seq, code = "OUT-4013", messages, "the application wrote this id twice: both rows are delivered");
            }
            Event::Dead { shard, position, reason, .. } => {
                tracing::warn!(outbox, %shard, destination, %position, code = reason.code, messages, "message is dead: {}", reason.text);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use outhaul_core::destination::DestinationIndex;
    use outhaul_core::message::{Position, ShardId};
    use outhaul_core::receipt::Reason;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines_of(what: impl FnOnce()) -> Vec<String> {
        let lines = Lines::default();
        let to = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || to.clone()).finish();
        tracing::subscriber::with_default(subscriber, what);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn many_messages_that_are_set_aside_are_few_lines() {
        let mut log = Log::new("main", &["points".to_owned()], None);
        let lines = lines_of(|| {
            for n in 0..1_000 {
                let (shard, position) = (ShardId(0), Position(n));
                let reason = Reason::new("OUT-4002", "not UTF-8");
                log.event(&Event::Dead { shard, destination: DestinationIndex(0), position, reason });
                log.event(&Event::NoRoute { shard, position, topic: "stray".into() });
            }
            log.rest(false);
            log.rest(true);
            log.rest(true);
        });
        assert_eq!(lines.len(), 4, "{lines:#?}");
        for (line, code) in [(0, "OUT-4002"), (1, "OUT-4001")] {
            assert!(lines[line].contains(code) && lines[line].ends_with(" messages=1"), "{lines:#?}");
        }
        assert!(lines[2..].iter().all(|l| l.contains("messages=999") && l.contains("more of the same")), "{lines:#?}");
    }

    #[test]
    fn what_the_database_says_to_a_checkpoint_comes_first() {
        let mut log = Log::new("main", &[], None);
        assert_eq!(log.database_failure(), None);
        let lines = lines_of(|| {
            for _ in 0..9 {
                log.failed("poll", &StoreError::new(StoreErrorKind::Timeout, "too slow"));
            }
            log.failed(CHECKPOINT, &StoreError::new(StoreErrorKind::Full, "no space left"));
        });
        assert_eq!(lines.len(), 5, "{lines:#?}");
        assert_eq!(log.database_failure().unwrap(), "checkpoint: OUT-1011 no space left");
        log.succeeded(CHECKPOINT);
        assert_eq!(log.database_failure().unwrap(), "poll: OUT-1002 too slow");
    }
}
