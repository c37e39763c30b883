//! Every metric of a relay.

use outhaul_metrics::Family;
use outhaul_metrics::Kind::{self, Counter, Gauge, Histogram};

macro_rules! families {
    ($($name:ident = $text:literal, $kind:ident, [$($label:literal),*], $help:literal;)*) => {
        $(#[doc = $help] pub static $name: Family = family($text, $kind, &[$($label),*], $help);)*
        /// All of them.
        pub static FAMILIES: &[&Family] = &[$(&$name),*];
    };
}

const fn family(name: &'static str, kind: Kind, labels: &'static [&'static str], help: &'static str) -> Family {
    Family { name, kind, labels, help }
}

families! {
    READY = "outhaul_ready", Gauge, ["outbox"], "1 if everything moves that should, else 0; /ready says what does not.";
    STALLED = "outhaul_stalled_seconds", Gauge, ["outbox", "part"],
        "For how long something has not moved that should: a call (poll, checkpoint), a shard or a lane.";
    TASKS_LOST = "outhaul_tasks_lost_total", Counter, ["outbox", "task"],
        "Internal tasks that panicked or hung; each was given up and its work asked for again.";
    DATABASE_ERRORS = "outhaul_database_errors_total", Counter, ["outbox", "call", "code"],
        "Failed calls of the outbox's database.";
    EVENTS = "outhaul_events_total", Counter, ["outbox", "event"],
        "What also stands in the log: shards acquired, fenced, handed over; commits without an answer, and so on.";
    HOT_ROWS = "outhaul_hot_rows", Gauge, ["outbox", "shard"],
        "Committed rows in the outbox table, counted up to 100000. From a look at the database every ten seconds or less often.";
    HOT_OLDEST = "outhaul_hot_oldest_seconds", Gauge, ["outbox", "shard"],
        "Age of the oldest of them that is not scheduled. 0: there is none.";
    SCHEDULED_ROWS = "outhaul_scheduled_rows", Gauge, ["outbox", "shard"], "How many of them are scheduled.";
    LEASE_STATE = "outhaul_lease_state", Gauge, ["outbox", "shard", "state"],
        "1 for the state of each shard that this process owns: recovering, running or draining.";
    LEASE_LEFT = "outhaul_lease_remaining_seconds", Gauge, ["outbox", "shard"],
        "For how long the lease of an owned shard holds for certain.";
    LEASE_EPOCH = "outhaul_lease_epoch", Gauge, ["outbox", "shard"],
        "Epoch of an owned shard: it rises with every change of owner.";
    LOG_END = "outhaul_log_end_position", Gauge, ["outbox", "shard"], "End of the log of an owned shard.";
    LOG_MESSAGES = "outhaul_log_messages", Gauge, ["outbox", "shard"],
        "Messages that the log of a shard holds. Looked up for one shard after the other.";
    UNMOVED_ROWS = "outhaul_unmoved_rows", Gauge, ["outbox", "shard"], "Rows that were read and are not in the log yet.";
    MEMORY = "outhaul_memory_bytes", Gauge, ["outbox", "shard"], "Bytes of messages in memory, roughly.";
    LAG = "outhaul_lane_lag_messages", Gauge, ["outbox", "shard", "destination"],
        "Messages that were read and are not settled in a lane: not delivered, and not set aside.";
    OLDEST_UNSENT = "outhaul_lane_oldest_unsent_seconds", Gauge, ["outbox", "shard", "destination"],
        "Age of the oldest of them. 0: there is none.";
    PARKED = "outhaul_parked_messages", Gauge, ["outbox", "shard", "destination", "state"],
        "Messages that are set aside: retrying, waiting behind another of their key, or dead. Destination -: no route.";
    BREAKER = "outhaul_breaker_open", Gauge, ["outbox", "shard", "destination"],
        "1 if the destination is down for a lane, in whole or in part, else 0.";
    SLOTS_DOWN = "outhaul_lane_slots_down", Gauge, ["outbox", "shard", "destination"],
        "Slots of a lane whose part of the destination is down.";
    PAUSED = "outhaul_lane_paused", Gauge, ["outbox", "shard", "destination"], "1 if an operator has paused it, else 0.";
    IN_FLIGHT = "outhaul_lane_batches_under_way", Gauge, ["outbox", "shard", "destination"],
        "Batches that were sent and not answered.";
    UNPROVEN = "outhaul_lane_unproven_messages", Gauge, ["outbox", "shard", "destination"],
        "Acknowledgements that have not reached the demanded level yet.";
    UNHEALED = "outhaul_lane_unhealed_messages", Gauge, ["outbox", "shard", "destination"],
        "Messages that the destination has forgotten and that are not delivered again yet.";
    DESTINATION_UP = "outhaul_destination_up", Gauge, ["outbox", "destination"],
        "1 if the newest start of the destination succeeded, else 0.";
    ACK_LEVEL = "outhaul_ack_level", Gauge, ["outbox", "destination", "level"],
        "1 for what an acknowledgement of the destination proves, as it said at its newest start.";
    ATTEMPTS = "outhaul_attempts_total", Counter, ["outbox", "destination", "outcome"],
        "Sends of messages by outcome: delivered, retry, rejected, unknown, down, held.";
    FORGOTTEN = "outhaul_forgotten_messages_total", Counter, ["outbox", "destination"],
        "Messages that the destination had acknowledged and forgot; they are sent again.";
    DEAD = "outhaul_dead_messages_total", Counter, ["outbox", "destination"], "Messages that became dead.";
    NO_ROUTE = "outhaul_no_route_messages_total", Counter, ["outbox"], "Messages whose topic no route names.";
    REPEATED = "outhaul_repeated_ids_total", Counter, ["outbox"],
        "Rows whose id another row had shortly before: the application wrote it twice, both are delivered.";
    READS = "outhaul_reads_total", Counter, ["outbox", "kind"], "Answered reads of the table: poll, rescan, due.";
    ROWS_READ = "outhaul_rows_read_total", Counter, ["outbox"], "Rows that these brought.";
    MOVED = "outhaul_moved_messages_total", Counter, ["outbox"], "Messages moved into the log.";
    MOVED_BYTES = "outhaul_moved_bytes_total", Counter, ["outbox"], "Their bytes, roughly.";
    PRUNED = "outhaul_pruned_messages_total", Counter, ["outbox"], "Messages that left the log.";
    CHECKPOINT_SECONDS = "outhaul_checkpoint_seconds", Histogram, ["outbox"], "How long checkpoints took.";
    CHECKPOINT_MESSAGES = "outhaul_checkpoint_messages", Histogram, ["outbox"], "Messages that a checkpoint moved.";
    READ_WAIT = "outhaul_commit_to_read_seconds", Histogram, ["outbox"],
        "From a row's created_at to its reading, by two clocks. Without scheduled rows.";
    SEND_SECONDS = "outhaul_send_seconds", Histogram, ["outbox", "destination"], "How long the send of a batch took.";
    READ_TO_ACK = "outhaul_read_to_ack_seconds", Histogram, ["outbox", "destination"],
        "From the reading of a row to its acknowledgement. Without scheduled rows, and without what a lane that lags reads from the log.";
    COMMIT_TO_ACK = "outhaul_commit_to_ack_seconds", Histogram, ["outbox", "destination"],
        "From a row's created_at to its acknowledgement, by two clocks. Of the same messages.";
}
