//! The numbers that the core goes by. Every wait and every queue has its limit here.

use std::sync::Arc;

use crate::destination::DestinationIndex;
use crate::faults::Faults;
use crate::lane::Slotting;
use crate::route::Routes;

/// Limits of an outbox's pipelines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time to live of a lease, milliseconds. Must exceed every lane's `send_limit_ms`.
    pub lease_ttl_ms: u64,
    /// Time between two lease rounds, milliseconds. At most a third of the ttl.
    pub lease_interval_ms: u64,
    /// Rows a poll.
    pub poll_rows: u32,
    /// Payload bytes a poll.
    pub poll_bytes: usize,
    /// Wait between polls while rows come, microseconds: lets a few rows gather.
    pub poll_busy_us: u64,
    /// Longest wait between polls while none come, microseconds.
    pub poll_idle_us: u64,
    /// The same once none has come for [`QUIET_AFTER_MS`], microseconds. At least `poll_idle_us`.
    pub poll_quiet_us: u64,
    /// Shortest wait between two rescans from the start of the table, milliseconds.
    pub rescan_min_ms: u64,
    /// Longest wait between two rescans, milliseconds. A rescan that takes long is repeated less often.
    pub rescan_max_ms: u64,
    /// Wait between two questions for the resolved mark while gaps are open, milliseconds.
    pub resolve_ms: u64,
    /// The oldest row that was read waits at most this long for its checkpoint, milliseconds.
    pub checkpoint_interval_ms: u64,
    /// Receipts alone (no row to move) wait this long, milliseconds.
    pub checkpoint_quiet_ms: u64,
    /// A checkpoint moves at most this many rows, over all shards.
    pub checkpoint_rows: usize,
    /// A checkpoint moves at most this many bytes, over all shards.
    pub checkpoint_bytes: usize,
    /// Bytes of rows read and not yet moved, each shard; above it the shard is not polled.
    pub unmoved_bytes: usize,
    /// Bytes of moved messages kept for lanes that are a little behind, each shard; lanes further behind read the log.
    pub window_bytes: usize,
    /// Send as soon as a row was read (true), or only once it was moved (false).
    pub send_ahead: bool,
    /// Wait between two questions for what has reached the demanded ack level, milliseconds. Only where
    /// acknowledgements do so some time after they were given.
    pub prove_ms: u64,
    /// A destination to which nothing is sent is asked so often whether it is still the one that was started,
    /// milliseconds: it may have forgotten what it acknowledged meanwhile.
    pub look_ms: u64,
    /// Wait between two looks for what operators want done, milliseconds.
    pub acts_ms: u64,
    /// Wait between two looks for rows that were scheduled lately, milliseconds.
    pub schedule_ms: u64,
    /// First and longest wait after a failed call of the database, milliseconds.
    pub store_backoff_ms: (u64, u64),
}

/// An outbox is quiet when no row has come for this long, milliseconds. So long as more than one message in a hundred
/// comes within it after another, `poll_idle_us` is what bounds the P99 of the wait.
pub const QUIET_AFTER_MS: u64 = 10_000;

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_ttl_ms: 10_000,
            lease_interval_ms: 1_000,
            poll_rows: 5_000,
            poll_bytes: 4 << 20,
            poll_busy_us: 2_500,
            poll_idle_us: 8_000,
            poll_quiet_us: 75_000,
            rescan_min_ms: 1_000,
            rescan_max_ms: 60_000,
            resolve_ms: 200,
            checkpoint_interval_ms: 100,
            checkpoint_quiet_ms: 1_000,
            checkpoint_rows: 5_000,
            checkpoint_bytes: 8 << 20,
            unmoved_bytes: 8 << 20,
            window_bytes: 4 << 20,
            send_ahead: true,
            prove_ms: 150,
            look_ms: 5_000,
            acts_ms: 500,
            schedule_ms: 500,
            store_backoff_ms: (50, 2_000),
        }
    }
}

/// Limits of a destination and its lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneLimits {
    /// A send without an answer for this long is Unknown, milliseconds.
    pub send_limit_ms: u64,
    /// Messages in a batch.
    pub max_batch: usize,
    /// Bytes in a batch, unless a single message is larger.
    pub max_batch_bytes: usize,
    /// Messages queued in a lane's slots, and its results that no checkpoint has taken yet: each at most.
    pub max_queued: usize,
    /// Bytes queued in a lane's slots.
    pub max_queued_bytes: usize,
    /// Positions between the cursor and the newest that the lane has taken.
    pub max_span: u64,
    /// Tries in place before a message is parked.
    pub quick_tries: u32,
    /// First and longest wait between tries in place, milliseconds.
    pub quick_backoff_ms: (u64, u64),
    /// Sends of a message, those in place included, before it is dead.
    pub max_attempts: u32,
    /// First and longest wait between tries of a parked message, milliseconds.
    pub retry_backoff_ms: (u64, u64),
    /// Whether later messages of a dead one's key wait (true), or go on (false).
    pub block_key: bool,
    /// Batches in a row of a slot about which the destination said nothing, after which the slot counts as down.
    pub breaker_failures: u32,
    /// First and longest wait of an open breaker, milliseconds.
    pub breaker_backoff_ms: (u64, u64),
    /// The most acknowledged messages that the destination may have forgotten, found at one time, and that are sent
    /// again without asking.
    pub max_forgotten: u64,
    /// Messages whose acknowledgement has not reached the demanded level yet; above it the lane takes no new ones.
    pub max_unproven: usize,
    /// Messages in a thousand seconds that the destination is sent at most, by all lanes of all instances together. None:
    /// as many as it takes.
    pub rate_milli: Option<u64>,
    /// Batches that may be under way to the destination from this instance, over all its lanes. None: one in each slot.
    pub concurrency: Option<usize>,
}

impl Default for LaneLimits {
    fn default() -> Self {
        Self {
            send_limit_ms: 3_000,
            max_batch: 500,
            max_batch_bytes: 1 << 20,
            max_queued: 10_000,
            max_queued_bytes: 8 << 20,
            max_span: 65_536,
            quick_tries: 3,
            quick_backoff_ms: (20, 500),
            max_attempts: 10,
            retry_backoff_ms: (1_000, 300_000),
            block_key: true,
            breaker_failures: 5,
            breaker_backoff_ms: (100, 10_000),
            max_forgotten: 1_000_000,
            max_unproven: 65_536,
            rate_milli: None,
            concurrency: None,
        }
    }
}

/// A destination as the core sees it.
#[derive(Clone, Debug)]
pub struct DestinationConfig {
    /// Name.
    pub name: String,
    /// Which messages must wait for each other.
    pub slotting: Slotting,
    /// Limits of its lanes.
    pub limits: LaneLimits,
}

/// All that an instance is told once.
#[derive(Clone, Debug)]
pub struct Config {
    /// Owner name: of this process alone.
    pub owner: String,
    /// Limits.
    pub settings: Settings,
    /// Destinations, by index.
    pub destinations: Arc<[DestinationConfig]>,
    /// Routes.
    pub routes: Routes,
    /// Seed of the jitter of waits.
    pub seed: u64,
    /// Faults built in on purpose: empty but in tests.
    #[doc(hidden)]
    pub faults: Faults,
}

impl Config {
    /// A configuration. Built only here, so that what tests add to it touches nobody else.
    pub const fn new(
        owner: String,
        settings: Settings,
        destinations: Arc<[DestinationConfig]>,
        routes: Routes,
        seed: u64,
    ) -> Self {
        Self { owner, settings, destinations, routes, seed, faults: Faults::NONE }
    }

    /// What all instances of an outbox should have in common: routes, destinations by name, and what dead messages do to
    /// their key. Short, of `0-9a-f`; the same whatever the order in which they are named. Only for telling apart.
    pub fn digest(&self) -> String {
        let names = self.names();
        let name = |d: &DestinationIndex| names.get(usize::from(d.0)).map_or("", String::as_str);
        let destinations = self.destinations.iter().map(|d| format!("destination {:?} {}", d.name, d.limits.block_key));
        let routes = self.routes.iter().map(|r| {
            let mut to: Vec<&str> = r.to.iter().map(name).collect();
            to.sort_unstable();
            format!("route {:?} {to:?}", r.pattern)
        });
        let mut parts: Vec<String> = destinations.chain(routes).collect();
        parts.sort_unstable();
        let fnv = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        format!("{:016x}", parts.join("\n").bytes().fold(0xcbf2_9ce4_8422_2325, fnv))
    }

    /// Names of the destinations, by index.
    pub fn names(&self) -> Arc<[String]> {
        self.destinations.iter().map(|d| d.name.clone()).collect()
    }

    /// Indexes of the destinations.
    pub fn indexes(&self) -> impl Iterator<Item = DestinationIndex> + use<> {
        (0..u8::try_from(self.destinations.len()).unwrap_or(u8::MAX)).map(DestinationIndex)
    }
}

/// A moment, by two clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Now {
    /// Monotonic clock of the process, microseconds since some start. All limits go by it.
    pub mono_us: u64,
    /// Wall clock, microseconds since 1970-01-01 UTC. Only for what is stored or shown.
    pub wall_us: i64,
}

impl Now {
    pub(crate) const fn after_ms(self, ms: u64) -> u64 {
        self.mono_us.saturating_add(ms.saturating_mul(1_000))
    }
}

/// Jitter from a seed: the core draws no random numbers of its own.
#[derive(Clone, Debug)]
pub(crate) struct Jitter(u64);

impl Jitter {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The wait after the `n`th failure in a row (from 1): doubles from the first to the longest, then between half of
    /// it and all of it. Milliseconds.
    pub(crate) fn backoff_ms(&mut self, n: u32, (first, longest): (u64, u64)) -> u64 {
        let full = first.saturating_mul(1 << n.saturating_sub(1).min(20)).clamp(1, longest.max(1));
        full - self.next() % (full / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::Route;

    #[test]
    fn a_digest_tells_what_differs_and_not_in_which_order_it_was_named() {
        let config = |names: &[&str], routes: &[(&str, &[u8])], block_key: bool| {
            let limits = LaneLimits { block_key, ..LaneLimits::default() };
            let destination = |n: &&str| DestinationConfig {
                name: (*n).to_owned(),
                slotting: Slotting::Single,
                limits: limits.clone(),
            };
            let route = |(pattern, to): &(&str, &[u8])| Route {
                pattern: (*pattern).to_owned(),
                to: to.iter().map(|d| DestinationIndex(*d)).collect(),
            };
            let routes = Routes::new(routes.iter().map(route).collect());
            Config::new("me".into(), Settings::default(), names.iter().map(destination).collect(), routes, 1).digest()
        };
        let one = config(&["a", "b"], &[("x", &[0]), ("y*", &[0, 1])], true);
        assert!(one.len() == 16 && one.is_ascii());
        assert_eq!(one, config(&["b", "a"], &[("y*", &[0, 1]), ("x", &[1])], true));
        for other in [
            config(&["a", "c"], &[("x", &[0]), ("y*", &[0, 1])], true),
            config(&["a", "b"], &[("x", &[1]), ("y*", &[0, 1])], true),
            config(&["a", "b"], &[("x", &[0]), ("y", &[0, 1])], true),
            config(&["a", "b"], &[("x", &[0]), ("y*", &[0, 1])], false),
        ] {
            assert_ne!(one, other);
        }
    }
}
