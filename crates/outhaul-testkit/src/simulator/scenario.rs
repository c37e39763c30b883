//! What goes wrong in a run, how often, and within which limits the relay works.

use std::sync::Arc;

use outhaul_core::config::{DestinationConfig, LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::Slotting;
use outhaul_core::route::Route;

use super::dice::Dice;

/// Milliseconds in the microseconds of simulated time.
pub(super) const MS: u64 = 1_000;
/// Seconds in the microseconds of simulated time.
pub(super) const SECOND: u64 = 1_000 * MS;

/// How often what happens, as ranges from which each seed draws its own numbers, and in thousandths.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Name, for people.
    pub name: &'static str,
    /// Processes at the start.
    pub processes: (u64, u64),
    /// Processes that join later.
    pub joins: (u64, u64),
    /// Kills: all memory is gone; another process starts later.
    pub crashes: (u64, u64),
    /// Pauses for longer than a lease: nothing is handled, then everything at once.
    pub pauses: (u64, u64),
    /// Times at which one process does not reach the database for about as long as its leases last.
    pub cuts: (u64, u64),
    /// Clean stops; another process starts later.
    pub drains: (u64, u64),
    /// Processes run one at a time and stop by themselves once all that was committed before their start is settled.
    pub until_empty: bool,
    /// Processes are started with some of the destinations, numbered in an order of their own.
    pub reconfigured: bool,
    /// Destinations have a rate, a concurrency, or both.
    pub limited: bool,
    /// What operators have done: redrive, skip, edit, pause, resume, drop.
    pub acts: (u64, u64),
    /// Acts that drop a destination, of a thousand.
    pub drops: u32,
    /// Replays that operators order.
    pub replays: (u64, u64),
    /// Times at which a process that carries one out is killed, paused, stopped or taken over.
    pub takeovers: (u64, u64),
    /// Changes of the number of shards.
    pub reshards: (u64, u64),
    /// What the applications do.
    pub application: ApplicationChances,
    /// What the database does.
    pub database: DatabaseChances,
    /// What the destinations do.
    pub sinks: SinkChances,
}

/// What the applications do.
#[derive(Clone, Debug)]
pub struct ApplicationChances {
    /// Transactions in a run.
    pub transactions: (u64, u64),
    /// Transactions that roll back, of a thousand.
    pub rollback: u32,
    /// Transactions that stay open for seconds, of a thousand.
    pub long: u32,
    /// Rows that can not be delivered as they stand, of a thousand.
    pub defect: u32,
    /// Rows that no route names, of a thousand.
    pub unrouted: u32,
    /// Numbers of the sequence that are skipped, of a thousand.
    pub jump: u32,
    /// Rows that are to be delivered later, of a thousand.
    pub scheduled: u32,
    /// Of these, rows that are to be cancelled at some time up to a little after they are due, of a thousand.
    pub cancelled: u32,
}

/// What the database does.
#[derive(Clone, Debug)]
pub struct DatabaseChances {
    /// Calls that fail, of a thousand: not done, or done without an answer.
    pub failure: u32,
    /// Checkpoints that roll back, of a thousand.
    pub not_written: u32,
    /// COMMITs without an answer, of a thousand.
    pub unknown: u32,
    /// Calls that take long, of a thousand. A read keeps the snapshot that it began with.
    pub slow: u32,
    /// Outages: every call fails, every transaction is rolled back.
    pub outages: (u64, u64),
    /// TRUNCATEs of the outbox: the sequence starts again.
    pub truncates: (u64, u64),
    /// Backups that are restored while the relay runs.
    pub restores: (u64, u64),
}

/// What the destinations do.
#[derive(Clone, Debug)]
pub struct SinkChances {
    /// Messages that are not taken this time, of a thousand.
    pub retry: u32,
    /// Messages that are stored but not acknowledged, of a thousand.
    pub lost_ack: u32,
    /// Messages stored two times, of a thousand.
    pub twice: u32,
    /// Batches that are cut off in the middle, of a thousand.
    pub cut: u32,
    /// Batches that arrive after their limit, of a thousand.
    pub late: u32,
    /// Messages that one destination never takes, of a thousand.
    pub rejected: u32,
    /// Messages that one destination asks to be sent again and again, of a thousand.
    pub stubborn: u32,
    /// Times at which a destination is down for a while.
    pub downs: (u64, u64),
    /// Times at which a destination does not answer for a while.
    pub hangs: (u64, u64),
    /// Destinations that may forget what they acknowledged, of a thousand.
    pub forgets: u32,
    /// Of these, destinations that can be asked what a crash will not take any more, of a thousand.
    pub tells: u32,
    /// Times at which a destination crashes.
    pub crashes: (u64, u64),
    /// Questions about what it remembers that it does not answer, of a thousand.
    pub unsure: u32,
}

const QUIET_APPLICATION: ApplicationChances = ApplicationChances {
    transactions: (20, 80),
    rollback: 0,
    long: 0,
    defect: 0,
    unrouted: 0,
    jump: 20,
    scheduled: 0,
    cancelled: 0,
};
const QUIET_DATABASE: DatabaseChances = DatabaseChances {
    failure: 0,
    not_written: 0,
    unknown: 0,
    slow: 20,
    outages: (0, 0),
    truncates: (0, 0),
    restores: (0, 0),
};
const QUIET_SINKS: SinkChances = SinkChances {
    retry: 0,
    lost_ack: 0,
    twice: 0,
    cut: 0,
    late: 0,
    rejected: 0,
    stubborn: 0,
    downs: (0, 0),
    hangs: (0, 0),
    forgets: 0,
    tells: 600,
    crashes: (0, 0),
    unsure: 0,
};

impl Scenario {
    /// Nothing fails; processes come and go cleanly. Not one duplicate is allowed.
    pub const CALM: Self = Self {
        name: "calm",
        processes: (1, 3),
        joins: (0, 2),
        crashes: (0, 0),
        pauses: (0, 0),
        cuts: (0, 0),
        drains: (0, 2),
        until_empty: false,
        reconfigured: false,
        drops: 0,
        limited: false,
        acts: (0, 0),
        replays: (0, 0),
        takeovers: (0, 0),
        reshards: (0, 0),
        application: QUIET_APPLICATION,
        database: DatabaseChances { slow: 0, ..QUIET_DATABASE },
        sinks: QUIET_SINKS,
    };

    /// Late commits, rollbacks, gaps, old snapshots, rows that cannot be delivered.
    pub const TRANSACTIONS: Self = Self {
        name: "transactions",
        drains: (0, 1),
        application: ApplicationChances {
            transactions: (30, 120),
            rollback: 150,
            long: 60,
            defect: 30,
            unrouted: 30,
            jump: 100,
            scheduled: 60,
            cancelled: 0,
        },
        database: DatabaseChances { slow: 100, ..QUIET_DATABASE },
        ..Self::CALM
    };

    /// A database that fails, loses answers, commits late and is away for a while.
    pub const DATABASE: Self = Self {
        name: "database",
        processes: (1, 2),
        database: DatabaseChances {
            failure: 30,
            not_written: 100,
            unknown: 150,
            slow: 60,
            outages: (0, 2),
            truncates: (0, 0),
            restores: (0, 0),
        },
        application: ApplicationChances { rollback: 100, long: 30, ..QUIET_APPLICATION },
        ..Self::CALM
    };

    /// Destinations that refuse, forget, repeat, hang and are down.
    pub const DESTINATIONS: Self = Self {
        name: "destinations",
        processes: (1, 2),
        drains: (0, 1),
        sinks: SinkChances {
            retry: 40,
            lost_ack: 20,
            twice: 10,
            cut: 20,
            late: 10,
            rejected: 15,
            stubborn: 10,
            downs: (0, 3),
            hangs: (0, 2),
            ..QUIET_SINKS
        },
        application: ApplicationChances { defect: 10, unrouted: 10, ..QUIET_APPLICATION },
        database: QUIET_DATABASE,
        ..Self::CALM
    };

    /// Processes that are killed, paused past their lease, stopped and started.
    pub const OWNERS: Self = Self {
        name: "owners",
        processes: (1, 3),
        joins: (0, 2),
        crashes: (1, 4),
        pauses: (0, 3),
        cuts: (0, 2),
        drains: (0, 2),
        application: ApplicationChances { rollback: 50, long: 20, ..QUIET_APPLICATION },
        database: DatabaseChances { unknown: 30, failure: 5, ..QUIET_DATABASE },
        sinks: SinkChances { retry: 20, lost_ack: 10, late: 20, rejected: 5, ..QUIET_SINKS },
        ..Self::CALM
    };

    /// Shards that change hands all the time, with lease rounds that are lost and reads that are older than the owner.
    pub const HANDOVERS: Self = Self {
        name: "handovers",
        processes: (2, 3),
        joins: (2, 6),
        crashes: (0, 0),
        cuts: (1, 4),
        drains: (2, 6),
        database: DatabaseChances { failure: 80, slow: 150, ..QUIET_DATABASE },
        ..Self::CALM
    };

    /// Destinations that crash and forget what they acknowledged, while owners come and go.
    pub const FORGETFUL: Self = Self {
        name: "forgetful",
        processes: (1, 2),
        joins: (0, 1),
        crashes: (0, 3),
        pauses: (0, 1),
        drains: (0, 2),
        application: ApplicationChances { transactions: (20, 120), rollback: 50, ..QUIET_APPLICATION },
        database: DatabaseChances { unknown: 30, failure: 5, ..QUIET_DATABASE },
        sinks: SinkChances {
            retry: 20,
            lost_ack: 10,
            late: 10,
            twice: 5,
            rejected: 10,
            downs: (0, 1),
            forgets: 800,
            crashes: (1, 4),
            unsure: 100,
            ..QUIET_SINKS
        },
        ..Self::CALM
    };

    /// Messages that are to be delivered later, some of them cancelled before, while owners come and go.
    pub const SCHEDULED: Self = Self {
        name: "scheduled",
        application: ApplicationChances {
            transactions: (30, 120),
            rollback: 50,
            long: 30,
            scheduled: 500,
            cancelled: 400,
            ..QUIET_APPLICATION
        },
        database: DatabaseChances { unknown: 30, failure: 30, slow: 60, ..QUIET_DATABASE },
        ..Self::OWNERS
    };

    /// One process, and nothing fails: among messages of a key that are to be delivered later, the order is exact.
    pub const SCHEDULED_CALM: Self = Self {
        name: "scheduled, calm",
        processes: (1, 1),
        joins: (0, 0),
        drains: (0, 0),
        application: ApplicationChances { transactions: (30, 120), scheduled: 500, ..QUIET_APPLICATION },
        ..Self::CALM
    };

    /// The same while owners stop in order and others begin.
    pub const SCHEDULED_HANDOVERS: Self = Self {
        name: "scheduled, handed over",
        processes: (1, 2),
        joins: (1, 4),
        drains: (1, 5),
        database: DatabaseChances { slow: 150, ..QUIET_DATABASE },
        ..Self::SCHEDULED_CALM
    };

    /// All of it at once.
    pub const EVERYTHING: Self = Self {
        name: "everything",
        crashes: (0, 3),
        pauses: (0, 2),
        application: Self::TRANSACTIONS.application,
        database: Self::DATABASE.database,
        sinks: SinkChances { forgets: 300, crashes: (0, 3), unsure: 30, ..Self::DESTINATIONS.sinks },
        ..Self::OWNERS
    };

    /// Processes that stop once all that was committed before their start is settled; some are killed before that.
    pub const UNTIL_EMPTY: Self = Self {
        name: "until empty",
        processes: (1, 1),
        joins: (3, 8),
        crashes: (0, 2),
        drains: (0, 1),
        until_empty: true,
        application: Self::TRANSACTIONS.application,
        sinks: SinkChances { forgets: 400, crashes: (0, 2), ..QUIET_SINKS },
        ..Self::DATABASE
    };

    /// Destinations are taken out of the configuration, come back, and change places.
    pub const RECONFIGURED: Self =
        Self { name: "reconfigured", joins: (1, 4), drains: (1, 4), reconfigured: true, ..Self::OWNERS };

    /// Operators redrive, skip, edit, pause and resume, while processes are killed and destinations forget.
    pub const ACTS: Self = Self {
        name: "acts",
        acts: (5, 30),
        application: ApplicationChances { transactions: (30, 120), defect: 40, unrouted: 60, ..QUIET_APPLICATION },
        database: DatabaseChances { unknown: 60, not_written: 40, failure: 10, ..QUIET_DATABASE },
        sinks: SinkChances {
            retry: 60,
            lost_ack: 10,
            late: 10,
            rejected: 80,
            stubborn: 40,
            downs: (0, 2),
            forgets: 700,
            crashes: (0, 5),
            unsure: 20,
            ..QUIET_SINKS
        },
        ..Self::OWNERS
    };

    /// The same, while destinations come into the configuration and leave it: what had no route gets one.
    pub const ACTS_RECONFIGURED: Self =
        Self { name: "acts, reconfigured", joins: (1, 4), drains: (1, 4), reconfigured: true, ..Self::ACTS };

    /// Destinations that are not configured any more are dropped, and come back.
    pub const DROPPED: Self = Self { name: "dropped", acts: (10, 40), drops: 300, ..Self::ACTS_RECONFIGURED };

    /// Many acts, and destinations that forget again and again: what was edited is sent a second time.
    pub const ACTS_FORGOTTEN: Self = Self {
        name: "acts, forgotten",
        acts: (20, 60),
        sinks: SinkChances { forgets: 1_000, crashes: (5, 20), ..Self::ACTS.sinks },
        ..Self::ACTS
    };

    /// The same with one owner all the time, so that lanes go back by themselves, and much that is refused and redriven.
    pub const ACTS_ALONE: Self = Self {
        name: "acts, alone",
        processes: (1, 1),
        joins: (0, 0),
        drains: (0, 0),
        crashes: (0, 0),
        pauses: (0, 0),
        acts: (60, 150),
        sinks: SinkChances { rejected: 200, crashes: (20, 60), ..Self::ACTS_FORGOTTEN.sinks },
        ..Self::ACTS_FORGOTTEN
    };

    /// Destinations with a rate and a concurrency, while they fail, processes come and go, and operators act.
    pub const LIMITED: Self = Self {
        name: "limited",
        processes: (1, 3),
        joins: (0, 2),
        crashes: (0, 2),
        drains: (0, 2),
        limited: true,
        acts: (0, 8),
        application: ApplicationChances { transactions: (40, 150), ..QUIET_APPLICATION },
        database: QUIET_DATABASE,
        sinks: SinkChances {
            retry: 30,
            lost_ack: 10,
            late: 5,
            rejected: 10,
            downs: (0, 2),
            forgets: 200,
            crashes: (0, 1),
            ..QUIET_SINKS
        },
        ..Self::CALM
    };

    /// The same, by processes that stop once all that was committed before their start is settled.
    pub const LIMITED_UNTIL_EMPTY: Self = Self {
        name: "limited, until empty",
        processes: (1, 1),
        joins: (3, 6),
        until_empty: true,
        acts: (0, 0),
        ..Self::LIMITED
    };

    /// Operators order replays beside live traffic; processes that carry them out are killed, paused, stopped and taken over,
    /// and destinations forget.
    pub const REPLAYS: Self = Self {
        name: "replays",
        acts: (0, 12),
        replays: (1, 6),
        takeovers: (0, 12),
        database: DatabaseChances { outages: (0, 1), slow: 60, ..Self::ACTS.database },
        sinks: SinkChances {
            rejected: 30,
            stubborn: 15,
            cut: 20,
            twice: 5,
            hangs: (0, 1),
            crashes: (0, 8),
            unsure: 100,
            ..Self::ACTS.sinks
        },
        ..Self::ACTS
    };

    /// The number of shards is changed again and again while applications insert: relays are stopped, or forgotten, killed
    /// and paused; the change is killed and paused in its middle, and repeated. What a destination has proven it keeps.
    pub const RESHARDED: Self = Self {
        name: "resharded",
        processes: (1, 2),
        joins: (0, 1),
        crashes: (0, 1),
        pauses: (0, 2),
        cuts: (0, 1),
        drains: (0, 1),
        acts: (0, 2),
        reshards: (1, 3),
        application: ApplicationChances {
            transactions: (10, 50),
            rollback: 80,
            long: 150,
            scheduled: 40,
            cancelled: 200,
            ..QUIET_APPLICATION
        },
        database: DatabaseChances { failure: 8, unknown: 30, slow: 30, outages: (0, 1), ..QUIET_DATABASE },
        sinks: SinkChances {
            retry: 30,
            lost_ack: 10,
            late: 10,
            rejected: 2,
            downs: (0, 3),
            forgets: 250,
            tells: 1_000,
            crashes: (0, 3),
            ..QUIET_SINKS
        },
        ..Self::CALM
    };

    /// As everything, and the outbox is truncated: its sequence starts again.
    pub const TRUNCATED: Self = Self {
        name: "truncated",
        database: DatabaseChances { truncates: (1, 2), ..Self::DATABASE.database },
        sinks: SinkChances { rejected: 5, retry: 10, ..QUIET_SINKS },
        ..Self::EVERYTHING
    };

    /// As everything, and a backup is restored while the relay runs (failure B7).
    pub const RESTORED: Self = Self {
        name: "restored",
        database: DatabaseChances { restores: (1, 1), ..Self::DATABASE.database },
        sinks: SinkChances { rejected: 5, retry: 10, ..QUIET_SINKS },
        ..Self::EVERYTHING
    };
}

impl Scenario {
    /// Whether messages that are due at different times go in that order whatever happens.
    pub(super) fn keeps_due_order(&self) -> bool {
        [Self::SCHEDULED_CALM.name, Self::SCHEDULED_HANDOVERS.name].contains(&self.name)
    }

    /// Whether nothing in it excuses a duplicate.
    pub(super) fn forbids_duplicates(&self) -> bool {
        let s = &self.sinks;
        let failing = s.lost_ack + s.twice + s.cut + s.late > 0 || s.hangs.1 + s.crashes.1 > 0;
        !failing
            && self.crashes.1 == 0
            && self.pauses.1 + self.cuts.1 == 0
            && self.database.outages.1 == 0
            && self.database.failure == 0
    }
}

/// What a seed draws before its run begins.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    pub(super) settings: Settings,
    pub(super) destinations: Arc<[DestinationConfig]>,
    pub(super) routes: Vec<Route>,
    pub(super) shards: u16,
    pub(super) keys: usize,
    /// Whether chunks and receipts go through their codecs.
    pub(super) encoded: bool,
    /// Receipts that a destination is shown at first, and rows that a read of them brings.
    pub(super) receipts_shown: usize,
    /// Scheduled rows that a look brings at most.
    pub(super) ahead: usize,
    pub(super) receipt_rows_read: usize,
}

/// The topics of the model applications: two with routes of their own, one that all destinations take, one that no
/// route names.
pub(super) const TOPICS: [&str; 4] = ["order-paid", "stock", "order-all", "nowhere"];

impl Limits {
    pub(super) fn draw(dice: &mut Dice) -> Self {
        let lease_ttl_ms = dice.between((800, 3_000));
        let poll_idle_us = dice.between((10 * MS, 60 * MS));
        let settings = Settings {
            lease_ttl_ms,
            lease_interval_ms: dice.between((lease_ttl_ms / 6, lease_ttl_ms / 3)),
            poll_rows: dice.between((2, 40)) as u32,
            poll_bytes: dice.between((600, 12_000)) as usize,
            poll_busy_us: dice.between((2 * MS, 10 * MS)),
            poll_idle_us,
            poll_quiet_us: poll_idle_us * 2,
            rescan_min_ms: dice.between((50, 600)),
            rescan_max_ms: dice.between((1_000, 5_000)),
            resolve_ms: dice.between((20, 300)),
            checkpoint_interval_ms: dice.between((10, 200)),
            checkpoint_quiet_ms: dice.between((50, 600)),
            checkpoint_rows: dice.between((1, 40)) as usize,
            checkpoint_bytes: dice.between((500, 12_000)) as usize,
            unmoved_bytes: dice.between((1_000, 20_000)) as usize,
            window_bytes: dice.between((0, 8_000)) as usize,
            send_ahead: !dice.chance(100),
            prove_ms: dice.between((20, 200)),
            look_ms: dice.between((100, 3_000)),
            acts_ms: 90,
            schedule_ms: dice.between((40, 400)),
            store_backoff_ms: (dice.between((5, 50)), dice.between((100, 500))),
        };
        let destinations: Vec<DestinationConfig> =
            (0..dice.between((1, 4))).map(|n| Self::destination(dice, n, lease_ttl_ms)).collect();
        let to = |dice: &mut Dice| {
            let all = 0..destinations.len() as u8;
            let some: Vec<DestinationIndex> = all.filter(|_| dice.chance(600)).map(DestinationIndex).collect();
            if some.is_empty() { vec![DestinationIndex(0)] } else { some }
        };
        let routes = vec![
            Route { pattern: "order-paid".into(), to: to(dice) },
            Route { pattern: "sto*".into(), to: to(dice) },
            Route { pattern: "*-all".into(), to: (0..destinations.len() as u8).map(DestinationIndex).collect() },
        ];
        Self {
            settings,
            routes,
            shards: dice.between((1, 5)) as u16,
            keys: dice.between((1, 12)) as usize,
            encoded: dice.chance(150),
            ahead: if dice.chance(300) { dice.between((1, 5)) as usize } else { 10_000 },
            receipts_shown: dice.between((1, 60)) as usize,
            receipt_rows_read: dice.between((1, 8)) as usize,
            destinations: destinations.into(),
        }
    }

    /// Gives destinations a rate, a concurrency, or both.
    pub(super) fn limit(&mut self, dice: &mut Dice) {
        let limited = self.destinations.iter().map(|d| {
            let mut d = d.clone();
            d.limits.rate_milli = dice.chance(700).then(|| dice.between((15_000, 120_000)));
            d.limits.concurrency = dice.chance(600).then(|| dice.between((1, 4)) as usize);
            d
        });
        self.destinations = limited.collect();
    }

    fn destination(dice: &mut Dice, n: u64, lease_ttl_ms: u64) -> DestinationConfig {
        let slotting = match dice.between((0, 3)) {
            0 => Slotting::Single,
            slots => Slotting::ByKey((slots * 2 - 1) as u32),
        };
        let limits = LaneLimits {
            send_limit_ms: dice.between((200, lease_ttl_ms / 2)),
            max_batch: dice.between((1, 12)) as usize,
            max_batch_bytes: dice.between((400, 6_000)) as usize,
            max_queued: dice.between((2, 60)) as usize,
            max_queued_bytes: dice.between((500, 20_000)) as usize,
            max_span: dice.between((4, 200)),
            quick_tries: dice.between((1, 3)) as u32,
            quick_backoff_ms: (dice.between((5, 20)), dice.between((20, 100))),
            max_attempts: dice.between((2, 6)) as u32,
            retry_backoff_ms: (dice.between((20, 100)), dice.between((200, 1_500))),
            block_key: dice.chance(600),
            breaker_failures: dice.between((2, 5)) as u32,
            breaker_backoff_ms: (dice.between((20, 60)), dice.between((100, 1_000))),
            max_forgotten: 1_000_000,
            max_unproven: dice.between((4, 100)) as usize,
            rate_milli: None,
            concurrency: None,
        };
        DestinationConfig { name: format!("d{n}"), slotting, limits }
    }
}
