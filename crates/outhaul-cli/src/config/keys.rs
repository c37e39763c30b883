//! Every key that the configuration knows: the one list from which unknown keys are found, values are read, defaults
//! are taken and `docs/configuration.md` is written.

use outhaul_sink::registry;

/// What a value must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Text that is not empty.
    Text,
    /// A file name.
    Path,
    /// A database URL. Never shown.
    Url,
    /// A whole number within limits, both included.
    Whole(u64, u64),
    /// `true` or `false`.
    Switch,
    /// A length of time with its unit (`ms`, `s`, `m`, `h`, `d`); the smallest allowed, in milliseconds.
    Span(u64),
    /// A number of bytes, with or without a unit (`KiB`, `MiB`, `GiB`); the smallest allowed.
    Size(u64),
    /// As `Size`, with the largest allowed too.
    SizeWithin(u64, u64),
    /// A number a second, perhaps with a fraction, with or without `/s`. It is read as thousandths.
    Rate,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A list of texts, at least one.
    List,
}

/// What happens when the key is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// This value is taken.
    Default(&'static str),
    /// Nothing: the words say what that means.
    Means(&'static str),
    /// It is an error.
    Required,
}

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Name, dotted where it stands in a table of its own (`columns.seq`).
    pub name: &'static str,
    /// What its value looks like.
    pub shape: Shape,
    /// What its absence means.
    pub absent: Absent,
    /// One or two sentences for the reference page.
    pub doc: &'static str,
}

/// One table or array of tables.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Name.
    pub name: &'static str,
    /// Whether it is an array of tables (`[[name]]`).
    pub repeated: bool,
    /// What it is for.
    pub doc: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

/// A key.
pub(super) const fn key(name: &'static str, shape: Shape, absent: Absent, doc: &'static str) -> Key {
    Key { name, shape, absent, doc }
}

use Absent::{Default, Means, Required};
use Shape::{List, Path, Rate, Size, SizeWithin, Span, Switch, Text, Url, Whole, Word};

/// Ack levels, weakest first.
pub const ACK_LEVELS: &[&str] = &["received", "flushed", "replicated", "quorum"];

const RELAY: &[Key] = &[
    key(
        "instance",
        Text,
        Means("the host's name"),
        "Name of this instance in logs and in `status`. The owner of a shard is this name and a number of the process, so that a restarted process is another owner.",
    ),
    key(
        "lease_ttl",
        Span(1_000),
        Default("10s"),
        "How long a shard stays with an owner that no longer renews. Must exceed the longest `send_limit`.",
    ),
    key(
        "lease_interval",
        Span(50),
        Means("a third of `lease_ttl`, at most 1s"),
        "Time between two lease rounds. At most a third of `lease_ttl`.",
    ),
    key(
        "shutdown_limit",
        Span(100),
        Default("30s"),
        "After SIGTERM or SIGINT the relay drains for at most this long, then stops without waiting; what was in flight is sent again by the next owner.",
    ),
    key("poll_rows", Whole(1, 100_000), Default("5000"), "Most rows that one poll reads."),
    key(
        "poll_bytes",
        Size(65_536),
        Default("4MiB"),
        "Most payload bytes that one poll reads, unless a single row is larger.",
    ),
    key("poll_idle", Span(1), Default("8ms"), "Longest wait between polls while no rows come."),
    key(
        "poll_quiet",
        Span(1),
        Default("75ms"),
        "The same once no row has come for 10 seconds. Set it to `poll_idle` if the first row after a silence must not wait longer.",
    ),
    key(
        "rescan_min",
        Span(100),
        Default("1s"),
        "Shortest wait between two looks at the whole outbox table, which find rows that committed late.",
    ),
    key("rescan_max", Span(1_000), Default("60s"), "Longest wait between two looks at the whole outbox table."),
    key(
        "checkpoint_interval",
        Span(1),
        Default("100ms"),
        "The oldest row that was read waits at most this long until it is moved into the log.",
    ),
    key("checkpoint_rows", Whole(1, 100_000), Default("5000"), "A checkpoint moves at most this many rows."),
    key("checkpoint_bytes", Size(65_536), Default("8MiB"), "A checkpoint moves at most this many bytes."),
    key(
        "memory_limit",
        Size(1 << 20),
        Default("8MiB"),
        "Bytes of rows that were read and not yet moved, for each shard. A shard above it is not polled.",
    ),
    key(
        "window",
        Size(65_536),
        Default("4MiB"),
        "Bytes of moved messages that are kept for lanes a little behind, for each shard. Lanes further behind read the log.",
    ),
    key(
        "send",
        Word(&["ahead", "after-checkpoint"]),
        Default("ahead"),
        "`ahead` sends as soon as a committed row was read. `after-checkpoint` waits until the row was moved: for databases that show a commit before it is durable.",
    ),
    key(
        "prune",
        Switch,
        Default("true"),
        "Whether the relay prunes and merges by itself, one instance at a time. `false`: `outhaul prune` does it, from a timer.",
    ),
    key(
        "retention",
        Span(0),
        Default("7d"),
        "Messages older than this leave the log, if every lane has settled them. Nothing unsent is ever deleted.",
    ),
    key(
        "export",
        Path,
        Means("what leaves the log is gone"),
        "Folder into which messages are written before they leave the log, as zstd-compressed JSON Lines by day; see operating.md. What cannot be written stays in the log. It holds for `outhaul prune` too.",
    ),
    key(
        "merge_after",
        Span(0),
        Default("10m"),
        "Small chunks and receipts of hours that ended this long ago are merged into large ones.",
    ),
];

const ADMIN: &[Key] = &[key(
    "listen",
    Text,
    Means("no admin server"),
    "Address and port at which `outhaul relay` answers `/live`, `/ready` and `/metrics`: `127.0.0.1:7070`, `[::1]:7070`. They show names of outboxes and destinations and what went wrong, to whoever reaches the address. `relay --admin ADDRESS` wins. See [monitoring.md](monitoring.md).",
)];

const OUTBOX: &[Key] = &[
    key("name", Text, Default("main"), "Name of this outbox in output, logs and `--outbox`. Each has its own."),
    key(
        "url",
        Url,
        Required,
        "Database: `sqlite:PATH`, `mysql://USER:PASSWORD@HOST:PORT/DATABASE`, `mariadb://…`, `postgres://…`.",
    ),
    key(
        "mode",
        Word(&["move", "status", "migrate"]),
        Default("move"),
        "`move`: rows are moved into the log. `status`: an existing table with a status column, whose rows stay where they are and are marked as sent; see status.md. `migrate`: the way from such a table to `move`, while applications insert into both.",
    ),
    key("table_prefix", Text, Means("no prefix"), "What the names of all tables begin with."),
    key(
        "table",
        Text,
        Default("outbox"),
        "Name of the outbox table itself, without the prefix. With `mode = \"status\"` and `\"migrate\"`: of the existing table, as it is.",
    ),
    key(
        "max_message_bytes",
        SizeWithin(1, 64 << 20),
        Default("4MiB"),
        "A larger payload is not fetched: its message is parked as dead with the limit named, and kept.",
    ),
    key("connect_timeout", Span(10), Default("5s"), "Limit of connecting."),
    key("statement_timeout", Span(10), Default("10s"), "Limit of a statement."),
    key("lock_timeout", Span(10), Default("1s"), "Limit of waiting for a lock."),
    key(
        "tls.required",
        Switch,
        Default("false"),
        "Use TLS or fail. `sslmode=require` or `ssl-mode=REQUIRED` in the URL says the same.",
    ),
    key("tls.ca_file", Path, Means("the built-in authorities"), "PEM file with the authorities to trust."),
    key("tls.insecure", Switch, Default("false"), "Accept any certificate. For tests only; every start says so."),
    key(
        "columns.preset",
        Word(&["outhaul", "debezium"]),
        Default("outhaul"),
        "Column names to begin with. `debezium`: those that Debezium's outbox event router documents (id, aggregatetype, aggregateid, type, payload); such a table needs a `seq` column, `validate` prints the ALTER TABLE.",
    ),
    key("columns.seq", Text, Means("as the preset says"), "Name of the column that holds `seq`."),
    key(
        "columns.shard",
        Text,
        Means("as the preset says"),
        "Name of the `shard` column. `none`: there is none, everything is shard 0.",
    ),
    key("columns.id", Text, Means("as the preset says"), "Name of the `id` column."),
    key("columns.topic", Text, Means("as the preset says"), "Name of the `topic` column."),
    key(
        "columns.msg_key",
        Text,
        Means("as the preset says"),
        "Name of the `msg_key` column. `none`: no keys, so no order.",
    ),
    key("columns.headers", Text, Means("as the preset says"), "Name of the `headers` column. `none`: no headers."),
    key("columns.payload", Text, Means("as the preset says"), "Name of the `payload` column."),
    key(
        "columns.created_at",
        Text,
        Means("as the preset says"),
        "Name of the `created_at` column. `none`: the time at which the relay read the row.",
    ),
    key(
        "columns.available_at",
        Text,
        Means("as the preset says"),
        "Name of the `available_at` column. `none`: no scheduled messages.",
    ),
    key(
        "status.column",
        Text,
        Default("status"),
        "Name of the column with the status. This and the following are for `mode = \"status\"` and `\"migrate\"`; there `columns.seq`, `columns.shard` and `columns.available_at` have no meaning, and `columns.msg_key` and `columns.headers` are absent unless they are named.",
    ),
    key(
        "status.sent_at",
        Text,
        Default("sent_at"),
        "Name of the column that is set when a row was delivered. `none`: there is none.",
    ),
    key("status.pending", Text, Default("PENDING"), "Status of a row that waits."),
    key("status.sent", Text, Default("SENT"), "Status of a row that was delivered."),
    key(
        "status.dead",
        Text,
        Means("its row stays as one that waits and is left out of polls"),
        "Status of a row that its destination refuses for good, or that an operator has skipped. The column must take it.",
    ),
    key(
        "status.batch",
        Whole(1, 100_000),
        Means("as many as the relay takes"),
        "Most rows of a poll. Fewer than it could take make it slower, and nothing else better.",
    ),
    key(
        "status.interval",
        Span(1),
        Means("four times as long as a poll takes, at most 200 ms"),
        "Time between the beginnings of two polls, at most 5 s.",
    ),
    key(
        "status.archive",
        Text,
        Means("rows stay in the table"),
        "Table into which rows go that were delivered long ago; `outhaul init` makes it, with the same columns. The relay moves them in small steps beside its pruning, or `outhaul prune` does.",
    ),
    key("status.archive_after", Span(1_000), Default("7d"), "How long after they were created they go there."),
    key(
        "status.purge_after",
        Span(1_000),
        Means("they stay in the archive"),
        "How long after they were created they are deleted from the archive.",
    ),
    key(
        "transactions.fallback",
        Switch,
        Default("true"),
        "Whether transactional messages that the broker has not confirmed go out by this outbox; see transactions.md.",
    ),
    key(
        "transactions.fallback_after",
        Span(1_000),
        Default("2m"),
        "How long after a relay first saw the committed row. Longer than ending a transaction takes when nothing goes wrong.",
    ),
    key(
        "transactions.retention",
        Span(60_000),
        Default("7d"),
        "Rows of transactions that have ended go after this time. Longer than the `fileReservedTime` of every broker: until then it may ask.",
    ),
];

/// Keys of every destination, whatever its kind.
pub const DESTINATION: &[Key] = &[
    key(
        "name",
        Text,
        Required,
        "Name of this destination in routes, receipts, output and logs. At most 64 letters, digits, `_`, `.` and, not at its start, `-`. Each has its own; a renamed destination is another destination.",
    ),
    key(
        "kind",
        Text,
        Required,
        "What it is; each kind has keys of its own, see below. A kind that is not in the build is refused.",
    ),
    key(
        "require_ack",
        Word(ACK_LEVELS),
        Means("any level, with a warning where it is weak"),
        "The least that an acknowledgement must prove. The relay refuses to start where the destination proves less.",
    ),
    key(
        "send_limit",
        Span(10),
        Default("3s"),
        "A send without an answer for this long counts as unknown and is tried again. `lease_ttl` must exceed it.",
    ),
    key("max_batch", Whole(1, 10_000), Default("500"), "Most messages in a batch."),
    key("max_batch_bytes", Size(1_024), Default("1MiB"), "Most bytes in a batch, unless a single message is larger."),
    key(
        "rate",
        Rate,
        Means("as many as it takes"),
        "Most messages a second, tries and probes counted, from all instances together: each has the share of the shards that it owns. What was not used is kept for a tenth of a second.",
    ),
    key(
        "concurrency",
        Whole(1, 100_000),
        Means("one in each slot of each shard"),
        "Most batches under way at one time, over all shards of a relay process.",
    ),
    key(
        "max_queued",
        Whole(1, 10_000_000),
        Default("10000"),
        "Most messages of a shard that are in memory for it, those under way included, and most results that are not stored yet.",
    ),
    key(
        "max_queued_bytes",
        Size(1_024),
        Default("8MiB"),
        "Most bytes of a shard that are in memory for it, those under way included.",
    ),
    key("quick_tries", Whole(1, 100), Default("3"), "Tries in place before a message is set aside as `retrying`."),
    key(
        "max_attempts",
        Whole(1, 10_000),
        Default("10"),
        "Sends of a message before it is `dead`. Attempts while the destination as a whole is down are not counted.",
    ),
    key(
        "retry_first",
        Span(1),
        Default("1s"),
        "Wait before a message that was set aside is tried again; it doubles from try to try.",
    ),
    key("retry_longest", Span(1), Default("5m"), "Longest such wait."),
    key(
        "on_dead",
        Word(&["block_key", "continue"]),
        Default("block_key"),
        "What later messages of a dead one's key do: wait, or go on.",
    ),
    key(
        "breaker_failures",
        Whole(1, 10_000),
        Default("5"),
        "Batches in a row of a slot (a queue, a partition) without one answer, after which that slot counts as down.",
    ),
    key(
        "max_forgotten",
        Whole(1, 1_000_000_000),
        Default("1000000"),
        "The most messages of a lane that are sent again by themselves when the destination turns out to have forgotten what it acknowledged. Above it the lane waits for an operator.",
    ),
    key("breaker_longest", Span(10), Default("10s"), "Longest wait between two looks at a destination that is down."),
];

const ROUTE: &[Key] = &[
    key(
        "topic",
        Text,
        Required,
        "A topic, in which `*` stands for any run of characters. A message goes to the destinations of every route that matches.",
    ),
    key("to", List, Required, "Names of destinations."),
    key(
        "rename",
        Text,
        Means("the topic that the application wrote"),
        "The topic under which its messages are delivered. A `*` stands for what the one `*` of `topic` stood for. The first route that matches, leads to the destination and has a `rename` counts. The log and `audit` keep the application's topic.",
    ),
    key(
        "tag",
        Text,
        Means("none"),
        "Header `tags` of its messages that have none: the tag (TAGS) of a RocketMQ message.",
    ),
];

/// Keys of `[[inbox]]` that are those of a destination of kind rocketmq.
pub const BROKER_KEYS: &[&str] = &[
    "namesrv",
    "access_key",
    "secret_key",
    "security_token",
    "tls",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
    "tls_server_name",
    "tls_insecure",
];

const INBOX: &[Key] = &[
    key("name", Text, Default("inbox"), "Name in output, logs and `--inbox`. Each has its own."),
    key(
        "url",
        Url,
        Required,
        "Database with the table `inbox_message`, as for an outbox. Its user needs SELECT, INSERT and UPDATE on `inbox_message` and `inbox_queue`.",
    ),
    key("table_prefix", Text, Means("none"), "What the names of the tables begin with."),
    key(
        "create_table",
        Switch,
        Default("true"),
        "Whether tables are made at the start if they are missing: the user needs CREATE for it. Those of an earlier version are brought up to date by `outhaul init --inbox`.",
    ),
    key("connections", Whole(1, 64), Default("4"), "Queues stored at the same time. SQLite always has one."),
    key("consumer", Text, Means("`group`"), "Name under which messages are stored, at most 64 bytes."),
    key("group", Text, Required, "Consumer group. Every copy of the daemon has the same, and reads the same topics."),
    key(
        "topics",
        List,
        Required,
        "Topics as the broker knows them, each with the tags that are wanted if not all: `\"Orders\"`, `\"Orders:paid||refunded\"`.",
    ),
    key(
        "from",
        Word(&["beginning", "end", "group"]),
        Default("beginning"),
        "Where a topic begins that was never read for this consumer: at what the broker still has, behind it, or where the group stands at the broker. Queues that a topic gets later begin at their beginning.",
    ),
    key(
        "on_dead",
        Word(&["block_key", "continue"]),
        Default("block_key"),
        "Whether a dead message keeps later ones of its key waiting, in the statements of `outhaul contract --inbox`.",
    ),
    key("max_batch", Whole(1, 10_000), Default("512"), "Most messages of one transaction."),
    key(
        "max_batch_bytes",
        Size(65_536),
        Default("1MiB"),
        "Most bytes of one transaction, unless one pull brought more.",
    ),
    key("memory_limit", Size(1_048_576), Default("64MiB"), "Most bytes that were read and are not stored yet."),
    key(
        "retention",
        Span(1_000),
        Means("they are kept"),
        "Messages that were done longer ago are deleted, in small steps, by one copy of the daemon. Its user needs DELETE on `inbox_message` for it. Not shorter than `replay_window`.",
    ),
    key(
        "replay_window",
        Span(0),
        Default("7d"),
        "How far back whoever sends may go and send again: `retention` of the relay, more where exported files are enqueued again.",
    ),
    key(
        "destination",
        Text,
        Means("the keys below"),
        "Name of a `[[destination]]` of kind rocketmq whose name servers, account and TLS are used.",
    ),
    key("namesrv", List, Means("those of `destination`"), "Name servers, `\"HOST:PORT\"`."),
    key("access_key", Text, Means("requests are not signed"), "Account (AccessKey)."),
    key(
        "secret_key",
        Text,
        Means("requests are not signed"),
        "Its secret (SecretKey): write `${NAME}` or `${file:PATH}`.",
    ),
    key("security_token", Text, Means("none"), "Temporary token of a security service."),
    key("tls", Switch, Default("false"), "Whether name servers and brokers are spoken to over TLS."),
    key("tls_ca_file", Path, Means("none"), "PEM file with the authorities that brokers must be signed by."),
    key("tls_cert_file", Path, Means("none"), "PEM file with the certificate to show to servers that ask for one."),
    key("tls_key_file", Path, Means("none"), "PEM file with its private key."),
    key("tls_server_name", Text, Means("the host of its address"), "Name that every server's certificate must have."),
    key("tls_insecure", Switch, Default("false"), "Accept any certificate, for brokers in TLS test mode."),
];

const RECONCILE: &[Key] = &[
    key("name", Text, Means("`destination`, or `query`"), "Name in output and logs. Each of an outbox has its own."),
    key("outbox", Text, Means("the only one"), "The outbox whose relay runs it, where there are several."),
    key(
        "destination",
        Text,
        Means("`query` is compared"),
        "The destination that must have what was committed: of kind file, inbox or rocketmq.",
    ),
    key(
        "query",
        Text,
        Means("`destination` is compared"),
        "A SELECT whose ids must be in the outbox, as for `outhaul reconcile --query`.",
    ),
    key("query_db", Url, Means("the outbox's database"), "Database of the query."),
    key("topic", Text, Means("all"), "Only messages whose topic matches; `*` stands for any run of characters."),
    key("every", Span(1_000), Default("1h"), "From the end of a comparison to the beginning of the next."),
    key(
        "from",
        Span(1_000),
        Default("1d"),
        "How far back it looks, by `created_at`. Longer than `every`, so that nothing is left out between two.",
    ),
    key("settle", Span(0), Default("60s"), "What is younger may be under way yet: it is not missing."),
    key(
        "fix",
        Switch,
        Default("false"),
        "Whether what is missing is delivered again, or enqueued. Otherwise it is only told.",
    ),
    key("rate", Rate, Default("20000/s"), "Most ids that are read a second, so that nobody else notices."),
    key("memory", SizeWithin(1 << 20, 1 << 30), Default("16MiB"), "Memory for what is compared."),
    key("temp", Path, Means("that of the system"), "Folder for temporary files."),
    key(
        "temp_limit",
        Size(1 << 20),
        Default("1GiB"),
        "The most that temporary files hold, about 100 bytes an id and side.",
    ),
    key("limit", Span(1_000), Default("1h"), "Longest time that reading a table or a query may take."),
];

/// `[relay]`, which also stands when it is left out.
pub const RELAY_SECTION: Section = Section { name: "relay", repeated: false, doc: "The relay process.", keys: RELAY };

/// The whole tree.
pub const SECTIONS: &[Section] = &[
    RELAY_SECTION,
    Section { name: "admin", repeated: false, doc: "The admin server.", keys: ADMIN },
    Section {
        name: "outbox",
        repeated: true,
        doc: "A database with an outbox. One relay may serve several.",
        keys: OUTBOX,
    },
    Section {
        name: "destination",
        repeated: true,
        doc: "A place to deliver to, at most 64. Keys of every kind:",
        keys: DESTINATION,
    },
    Section {
        name: "route",
        repeated: true,
        doc: "From topics to destinations. A message that no route names is parked under the destination `-`, never dropped.",
        keys: ROUTE,
    },
    Section {
        name: "reconcile",
        repeated: true,
        doc: "A comparison that relays run by a schedule, one of them at a time: [reconcile.md](reconcile.md).",
        keys: RECONCILE,
    },
    Section {
        name: "inbox",
        repeated: true,
        doc: "What `outhaul inbox` reads, and the database that it stores into: [inbox.md](inbox.md). A configuration for it needs no `[[outbox]]`.",
        keys: INBOX,
    },
];

/// The section of a name.
pub fn section(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|s| s.name == name)
}

/// The names of all keys of a section; `kind` adds those of that kind of destination.
pub fn names(section: &Section, kind: Option<&str>) -> Vec<&'static str> {
    let of_kind = if section.name == "destination" { kind.and_then(registry::keys).unwrap_or(&[]) } else { &[] };
    section.keys.iter().map(|k| k.name).chain(of_kind.iter().map(|k| k.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_has_the_shape_of_its_key() {
        for (section, k) in SECTIONS.iter().flat_map(|s| s.keys.iter().map(move |k| (s.name, k))) {
            if let Default(text) = k.absent {
                assert!(super::super::value::check(k.shape, text).is_ok(), "{section} {}", k.name);
            }
        }
    }
}
