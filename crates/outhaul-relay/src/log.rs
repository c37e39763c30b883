//! Events as log lines. No payload, key value or secret is ever among them.

use std::collections::HashMap;

use outhaul_core::instance::Event;
use outhaul_store::{StoreError, StoreErrorKind};

/// Writes the log of one outbox.
pub(crate) struct Log {
    outbox: String,
    destinations: Vec<String>,
    /// Failures in a row by what was being done: the first is logged, then every power of two.
    failures: HashMap<&'static str, (StoreErrorKind, u64)>,
}

impl Log {
    pub(crate) fn new(outbox: &str, destinations: &[String]) -> Self {
        Self { outbox: outbox.to_owned(), destinations: destinations.to_vec(), failures: HashMap::new() }
    }

    /// A call of the database failed.
    pub(crate) fn failed(&mut self, doing: &'static str, error: &StoreError) {
        let (kind, n) = self.failures.entry(doing).or_insert((error.kind, 0));
        if *kind != error.kind {
            (*kind, *n) = (error.kind, 0);
        }
        *n += 1;
        if n.is_power_of_two() {
            let (code, remedy, outbox) = (error.kind.code(), error.kind.remedy(), &self.outbox);
            tracing::warn!(outbox, code, failures = *n, remedy, "{doing}: {}", error.message);
        }
    }

    /// A call of the database succeeded.
    pub(crate) fn succeeded(&mut self, doing: &'static str) {
        if let Some((_, n)) = self.failures.remove(doing) {
            tracing::info!(outbox = self.outbox, failures = n, "{doing}: works again");
        }
    }

    pub(crate) fn event(&self, event: &Event) {
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
            Event::NoRoute { shard, position, topic } => {
                tracing::warn!(outbox, %shard, %position, topic, code = "OUT-4001", "no route names a destination for this topic: parked under -");
            }
            Event::RepeatedId { id, seq } => {
                tracing::warn!(outbox, id, %seq, code = "OUT-4013", "the application wrote this id twice: both rows are delivered");
            }
            Event::Dead { shard, destination, position, reason } => {
                tracing::warn!(outbox, %shard, destination = name(destination), %position, code = reason.code, "message is dead: {}", reason.text);
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
}
