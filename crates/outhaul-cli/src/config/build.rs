//! From the tree to the configuration, with everything that has to hold between its parts.

use std::path::PathBuf;
use std::time::Duration;

use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::MAX_DESTINATIONS;
use outhaul_core::receipt::AckLevel;
use outhaul_inbox::Begin;
use outhaul_relay::Transactions;
use outhaul_sink::rocketmq::RocketMqConfig;
use outhaul_sink::settings::suggest;
use outhaul_sink::{SinkCode, registry, rocketmq};
use outhaul_store::{Archive, ColumnNames, StatusTable, StoreOptions, Tls};
use serde_json::{Map, Value as Json};

use super::keys::{self, SECTIONS};
use super::problems::Problems;
use super::section::Table;
use super::value::{Node, Origin, Value};
use super::{Admin, Config, Destination, Inbox, Outbox, Reconcile, Relay, RouteKeys};
use crate::codes;
use crate::failure::{Blame, Failure, Failures};

/// Reads the tree.
///
/// # Errors
/// All that is wrong, earlier problems included.
pub(super) fn build(tree: &[(String, Node)], without_outbox: bool, mut problems: Problems) -> Result<Config, Failures> {
    let p = &mut problems;
    refuse_unknown_sections(tree, p);
    let all = |name: &str, p: &mut Problems| keys::section(name).map_or_else(Vec::new, |s| Table::all(s, tree, p));
    let admin = admin(all("admin", p).first(), p);
    let relay = relay(all("relay", p).first(), p);
    let outboxes = outboxes(&all("outbox", p), without_outbox, p);
    let tables = all("destination", p);
    let destinations = destinations(&tables, p);
    if let Some(beyond) = tables.get(MAX_DESTINATIONS) {
        let what = format!("there are {} destinations, one relay serves at most {MAX_DESTINATIONS}", tables.len());
        p.at(&beyond.origin, &codes::TOO_MANY_DESTINATIONS, what);
    }
    for (table, destination) in &destinations {
        if destination.limits.send_limit_ms >= relay.settings.lease_ttl_ms {
            let what = format!(
                "the send_limit of destination {} is {} ms, lease_ttl is {} ms: a lease could run out during a send",
                destination.name, destination.limits.send_limit_ms, relay.settings.lease_ttl_ms
            );
            p.at(table.place("send_limit"), &codes::LEASE_TOO_SHORT, what);
        }
    }
    let names: Vec<&str> = tables.iter().filter_map(|t| plain_text(t, "name")).collect();
    let route_tables = all("route", p);
    let routes = routes(&route_tables, &names, p);
    if routes.len() == route_tables.len() {
        refuse_several_destinations(&outboxes, &route_tables, &routes, p);
    }
    let destinations: Vec<Destination> = destinations.into_iter().map(|(_, d)| d).collect();
    let inboxes = inboxes(&all("inbox", p), &destinations, p);
    let reconciles = reconciles(&all("reconcile", p), &outboxes, &destinations, p);
    problems.into_result(Config { relay, admin, outboxes, destinations, routes, inboxes, reconciles })
}

fn refuse_unknown_sections(tree: &[(String, Node)], p: &mut Problems) {
    for (name, node) in tree.iter().filter(|(name, _)| keys::section(name).is_none()) {
        let home = SECTIONS.iter().find(|s| s.keys.iter().any(|k| k.name == name));
        let near = suggest(name, SECTIONS.iter().map(|s| s.name));
        let hint = match (home, near) {
            (Some(section), _) => format!("; {name} is a key of {}", section.name),
            (None, Some(near)) => format!("; did you mean {near}?"),
            (None, None) => String::new(),
        };
        p.at(&node.origin, &codes::UNKNOWN_KEY, format!("there is no section {name}{hint}"));
    }
}

fn admin(table: Option<&Table>, p: &mut Problems) -> Admin {
    let Some(t) = table else { return Admin::default() };
    t.refuse_unknown(None, p);
    let listen = t.text("listen", p).and_then(|text| {
        let address = text.parse();
        if address.is_err() {
            let what = format!("listen is no address with a port: {text:?}; 127.0.0.1:7070 is one");
            p.at(t.place("listen"), &codes::BAD_VALUE, what);
        }
        address.ok()
    });
    Admin { listen }
}

fn relay(table: Option<&Table>, p: &mut Problems) -> Relay {
    let empty = Table { section: &keys::RELAY_SECTION, entries: vec![], origin: Origin::Line(1) };
    let t = table.unwrap_or(&empty);
    t.refuse_unknown(None, p);
    let standard = Settings::default();
    let lease_ttl_ms = t.whole("lease_ttl", p).unwrap_or(standard.lease_ttl_ms);
    let lease_interval_ms = t.whole("lease_interval", p).unwrap_or_else(|| (lease_ttl_ms / 3).min(1_000));
    if lease_interval_ms > lease_ttl_ms / 3 {
        let what = format!(
            "lease_interval is {lease_interval_ms} ms; it may be at most a third of lease_ttl, {} ms",
            lease_ttl_ms / 3
        );
        p.at(t.place("lease_interval"), &codes::BAD_VALUE, what);
    }
    let (rescan_min_ms, rescan_max_ms) = (t.whole("rescan_min", p), t.whole("rescan_max", p));
    if let (Some(least), Some(most)) = (rescan_min_ms, rescan_max_ms)
        && least > most
    {
        p.at(
            t.place("rescan_min"),
            &codes::BAD_VALUE,
            format!("rescan_min is {least} ms, above rescan_max, {most} ms"),
        );
    }
    let settings = Settings {
        lease_ttl_ms,
        lease_interval_ms,
        poll_rows: t.whole("poll_rows", p).map_or(standard.poll_rows, |n| u32::try_from(n).unwrap_or(u32::MAX)),
        poll_bytes: t.whole("poll_bytes", p).map_or(standard.poll_bytes, bytes),
        poll_idle_us: t.whole("poll_idle", p).map_or(standard.poll_idle_us, |ms| ms.saturating_mul(1_000)),
        poll_quiet_us: t.whole("poll_quiet", p).map_or(standard.poll_quiet_us, |ms| ms.saturating_mul(1_000)),
        rescan_min_ms: rescan_min_ms.unwrap_or(standard.rescan_min_ms),
        rescan_max_ms: rescan_max_ms.unwrap_or(standard.rescan_max_ms),
        checkpoint_interval_ms: t.whole("checkpoint_interval", p).unwrap_or(standard.checkpoint_interval_ms),
        checkpoint_rows: t.whole("checkpoint_rows", p).map_or(standard.checkpoint_rows, bytes),
        checkpoint_bytes: t.whole("checkpoint_bytes", p).map_or(standard.checkpoint_bytes, bytes),
        unmoved_bytes: t.whole("memory_limit", p).map_or(standard.unmoved_bytes, bytes),
        window_bytes: t.whole("window", p).map_or(standard.window_bytes, bytes),
        send_ahead: t.text("send", p).is_none_or(|word| word == "ahead"),
        ..standard
    };
    Relay {
        instance: t.text("instance", p),
        settings,
        shutdown_limit_ms: t.whole("shutdown_limit", p).unwrap_or_default(),
        prune: t.switch("prune", p),
        retention_ms: t.whole("retention", p).unwrap_or_default(),
        export: t.text("export", p).map(PathBuf::from),
        merge_after_ms: t.whole("merge_after", p).unwrap_or_default(),
    }
}

fn bytes(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

fn outboxes(tables: &[Table], may_be_none: bool, p: &mut Problems) -> Vec<Outbox> {
    if tables.is_empty() && !may_be_none && p.is_empty() {
        p.without_place(Failure::new(&codes::NO_DATABASE, "no outbox is configured"));
    }
    let mut outboxes: Vec<Outbox> = vec![];
    for t in tables {
        t.refuse_unknown(None, p);
        let name = t.text("name", p).unwrap_or_default();
        check_name(t, &name, outboxes.iter().any(|o| o.name == name), p);
        let mode = t.text("mode", p).unwrap_or_default();
        let (is_status, migrates) = (mode == "status", mode == "migrate");
        let mut store = StoreOptions::new(t.text("url", p).unwrap_or_default());
        if !store.url.is_empty()
            && let Err(e) = store.kind()
        {
            p.push(t.place("url"), usage(e.into()));
        }
        store.table_prefix = t.text("table_prefix", p).unwrap_or_default();
        store.outbox_table = t.text("table", p).unwrap_or_default();
        if is_status || migrates {
            let table = status_table(t, store.outbox_table, p);
            store.status = Some(StatusTable { migrate: migrates, ..table });
            store.outbox_table = NATIVE_TABLE.to_owned();
        } else {
            store.columns = columns(t, p);
            refuse_keys(t, "status.", "is for mode = \"status\"", p);
        }
        if is_status {
            let why = "needs native mode: transactional messages fall back into an outbox table";
            refuse_keys(t, "transactions.", why, p);
        }
        let ms = |key, p: &mut Problems| Duration::from_millis(t.whole(key, p).unwrap_or_default());
        store.max_message_bytes = t.whole("max_message_bytes", p).unwrap_or_default();
        store.connect_timeout = ms("connect_timeout", p);
        store.statement_timeout = ms("statement_timeout", p);
        store.lock_timeout = ms("lock_timeout", p);
        store.tls = Tls {
            required: t.switch("tls.required", p),
            ca_file: t.text("tls.ca_file", p).map(Into::into),
            insecure: t.switch("tls.insecure", p),
        };
        // A row that falls back would go into a table that is not the relay's own.
        let transactions = (t.switch("transactions.fallback", p) && !is_status).then(|| Transactions {
            fallback_after: ms("transactions.fallback_after", p),
            retention: ms("transactions.retention", p),
            ..Transactions::default()
        });
        outboxes.push(Outbox { name, store, transactions });
    }
    outboxes
}

/// What the outbox table of native mode is called beside a status table.
pub(crate) const NATIVE_TABLE: &str = "outbox_native";

/// A poll that waits longer would be taken for one without an answer.
const MAX_INTERVAL: Duration = Duration::from_secs(5);

fn refuse_keys(t: &Table, prefix: &str, why: &str, p: &mut Problems) {
    for key in t.section.keys.iter().filter(|key| key.name.starts_with(prefix) && t.node(key.name).is_some()) {
        p.at(t.place(key.name), &codes::BAD_VALUE, format!("{} {why}", key.name));
    }
}

fn status_table(t: &Table, table: String, p: &mut Problems) -> StatusTable {
    for key in ["columns.seq", "columns.shard", "columns.available_at", "columns.preset"] {
        refuse_keys(t, key, "has no meaning with mode = \"status\"", p);
    }
    let standard = StatusTable::default();
    let may = |key, absent: Option<String>, p: &mut Problems| match t.text(key, p) {
        None => absent,
        Some(none) if none == "none" => None,
        name => name,
    };
    let must = |key, absent: String, p: &mut Problems| t.text(key, p).unwrap_or(absent);
    let made = StatusTable {
        table,
        id: must("columns.id", standard.id, p),
        topic: must("columns.topic", standard.topic, p),
        key: may("columns.msg_key", None, p),
        headers: may("columns.headers", None, p),
        payload: must("columns.payload", standard.payload, p),
        created_at: may("columns.created_at", standard.created_at, p),
        status: must("status.column", standard.status, p),
        sent_at: may("status.sent_at", standard.sent_at, p),
        pending: must("status.pending", standard.pending, p),
        sent: must("status.sent", standard.sent, p),
        dead: t.text("status.dead", p),
        interval: t.whole("status.interval", p).map(Duration::from_millis),
        batch: t.whole("status.batch", p).map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
        archive: archive(t, p),
        migrate: false,
    };
    if made.interval.is_some_and(|interval| interval > MAX_INTERVAL) {
        p.at(t.place("status.interval"), &codes::BAD_VALUE, "status.interval is at most 5 s");
    }
    let words = [Some(&made.pending), Some(&made.sent), made.dead.as_ref()];
    let all: Vec<&String> = words.into_iter().flatten().collect();
    if all.iter().enumerate().any(|(n, word)| all.iter().take(n).any(|earlier| earlier.eq_ignore_ascii_case(word))) {
        p.at(t.place("status.sent"), &codes::BAD_VALUE, "status.pending, status.sent and status.dead must differ");
    }
    made
}

fn archive(t: &Table, p: &mut Problems) -> Option<Archive> {
    let millis = Duration::from_millis;
    let after = millis(t.whole("status.archive_after", p).unwrap_or_default());
    let purge_after = t.whole("status.purge_after", p).map(millis);
    let Some(table) = t.text("status.archive", p) else {
        for key in ["status.archive_after", "status.purge_after"] {
            refuse_keys(t, key, "needs status.archive, the table that it is about", p);
        }
        return None;
    };
    if purge_after.is_some_and(|purge| purge <= after) {
        p.at(t.place("status.purge_after"), &codes::BAD_VALUE, "status.purge_after must exceed status.archive_after");
    }
    Some(Archive { table, after, purge_after })
}

/// A row of a status table has one status, so a topic has one destination.
fn refuse_several_destinations(outboxes: &[Outbox], tables: &[Table], routes: &[RouteKeys], p: &mut Problems) {
    let Some(outbox) = outboxes.iter().find(|o| o.store.status.as_ref().is_some_and(|table| !table.migrate)) else {
        return;
    };
    for (n, (table, route)) in tables.iter().zip(routes).enumerate() {
        let other = routes.iter().take(n).find(|r| r.to != route.to && overlap(&r.topic, &route.topic));
        let what = match (route.to.as_slice(), other) {
            ([_, _, ..], _) => format!("topic {:?} goes to {}", route.topic, route.to.join(" and ")),
            (_, Some(other)) => format!(
                "topics may match both {:?}, which go to {}, and {:?}, which go to {}",
                other.topic,
                other.to.join(" and "),
                route.topic,
                route.to.join(" and ")
            ),
            _ => continue,
        };
        let what = format!("{what}; a row of outbox {} has one status, so its topic has one destination", outbox.name);
        p.at(table.place("to"), &codes::STATUS_MODE, what);
    }
}

/// Whether some topic matches both patterns.
fn overlap(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Whether the rests from i and j on have something in common, from the end to the beginning.
    let mut below = vec![false; b.len() + 1];
    for i in (0..=a.len()).rev() {
        let mut row = vec![false; b.len() + 1];
        for j in (0..=b.len()).rev() {
            let (x, y) = (a.get(i), b.get(j));
            let at = |row: &[bool], j: usize| row.get(j).copied().unwrap_or(false);
            row[j] = match (x, y) {
                (None, None) => true,
                (Some('*'), _) if at(&below, j) => true,
                (_, Some('*')) if at(&row, j + 1) => true,
                (Some('*'), Some(_)) => at(&row, j + 1),
                (Some(_), Some('*')) => at(&below, j),
                (Some(x), Some(y)) => x == y && at(&below, j + 1),
                (None, Some(_)) | (Some(_), None) => false,
            };
        }
        below = row;
    }
    below.first().copied().unwrap_or(false)
}

fn columns(t: &Table, p: &mut Problems) -> ColumnNames {
    let preset = if t.text("columns.preset", p).as_deref() == Some("debezium") {
        ColumnNames::debezium()
    } else {
        ColumnNames::default()
    };
    let must = |key, of_preset: String, p: &mut Problems| t.text(key, p).unwrap_or(of_preset);
    let may = |key, of_preset: Option<String>, p: &mut Problems| match t.text(key, p) {
        None => of_preset,
        Some(none) if none == "none" => None,
        name => name,
    };
    ColumnNames {
        seq: must("columns.seq", preset.seq, p),
        shard: may("columns.shard", preset.shard, p),
        id: must("columns.id", preset.id, p),
        topic: must("columns.topic", preset.topic, p),
        key: may("columns.msg_key", preset.key, p),
        headers: may("columns.headers", preset.headers, p),
        payload: must("columns.payload", preset.payload, p),
        created_at: may("columns.created_at", preset.created_at, p),
        available_at: may("columns.available_at", preset.available_at, p),
    }
}

fn destinations<'a>(tables: &'a [Table], p: &mut Problems) -> Vec<(&'a Table, Destination)> {
    let mut destinations: Vec<(&Table, Destination)> = vec![];
    for t in tables {
        let name = t.text("name", p).unwrap_or_default();
        if t.node("name").is_some() {
            check_name(t, &name, destinations.iter().any(|(_, d)| d.name == name), p);
        }
        let kind = t.text("kind", p).unwrap_or_default();
        let of_kind = registry::keys(&kind);
        if of_kind.is_some() {
            t.refuse_unknown(Some(&kind), p);
        }
        let limits = limits(t, p);
        let require_ack = t.text("require_ack", p).and_then(|word| ack_level(&word));
        let mut settings = settings(t, of_kind.unwrap_or(&[]));
        fit_request_limit(t, of_kind.unwrap_or(&[]), &limits, &mut settings, p);
        let settings = Json::Object(settings);
        // What is missing is told by the sink; what is unknown was told above, with its line.
        if !kind.is_empty()
            && let Err(e) = registry::make(&kind, &name, settings.clone(), require_ack)
        {
            let place = if e.code == SinkCode::Settings.code() { &t.origin } else { t.place("kind") };
            p.push(place, usage(e.into()));
        }
        let place = place(&kind, &name, &settings);
        let same = |(_, d): &&(&Table, Destination)| self::place(&d.kind, &d.name, &d.settings) == place;
        if let Some((_, other)) = destinations.iter().find(same).filter(|_| place.is_some()) {
            let what =
                format!("destinations {} and {name} are the same place: use one of them in both routes", other.name);
            p.at(&t.origin, &codes::BAD_VALUE, what);
        }
        destinations.push((t, Destination { name, kind, settings, limits, require_ack }));
    }
    destinations
}

/// Where a destination delivers to, of the kinds of which two with the same place would mix or swallow what they deliver.
/// Names of one place that only a server can know to be the same are not seen through.
fn place(kind: &str, name: &str, settings: &Json) -> Option<(String, String, String)> {
    let text = |key: &str| settings.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    match kind {
        "file" => Some(text("path")).filter(|path| path != "-").map(|path| (real(&path), String::new(), String::new())),
        "inbox" => {
            let consumer = Some(text("consumer")).filter(|c| !c.is_empty()).unwrap_or_else(|| name.to_owned());
            let url = text("url");
            let database = match url.split_once("://") {
                Some((scheme, rest)) if scheme != "sqlite" => {
                    let family = scheme.replace("mariadb", "mysql").replace("postgresql", "postgres");
                    let without_user = rest.split_once('@').map_or(rest, |(_, server)| server);
                    format!("{family}://{}", without_user.split('?').next().unwrap_or_default())
                }
                _ => real(url.trim_start_matches("sqlite:").trim_start_matches("//")),
            };
            Some((database, text("table_prefix"), consumer))
        }
        _ => None,
    }
}

/// A path as it is without links and relative parts, as far as there is something by now.
fn real(path: &str) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    let in_folder = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(in_folder).unwrap_or(path).display().to_string()
}

/// A request must end before the send that it is a part of, or the reason is never known: where it is not said, it is
/// made to.
fn fit_request_limit(
    t: &Table,
    keys: &[outhaul_sink::settings::Key],
    limits: &LaneLimits,
    settings: &mut Map<String, Json>,
    p: &mut Problems,
) {
    const KEY: &str = "request_limit_ms";
    let Some(key) = keys.iter().find(|key| key.name == KEY) else { return };
    let send_ms = limits.send_limit_ms;
    match settings.get(KEY).and_then(Json::as_u64) {
        Some(ms) if ms >= send_ms => {
            let what = format!("{KEY} is {ms} ms, send_limit is {send_ms} ms: it must be less");
            p.at(t.place(KEY), &codes::BAD_VALUE, what);
        }
        Some(_) => {}
        None if settings.contains_key(KEY) => {}
        None => {
            let standard = key.default.and_then(|d| d.parse().ok()).unwrap_or(send_ms);
            if standard >= send_ms {
                settings.insert(KEY.to_owned(), Json::from((send_ms * 4 / 5).max(50)));
            }
        }
    }
}

/// The keys of a kind as its sink reads them. A variable is always text: it becomes what the key's default is.
fn settings(t: &Table, keys: &[outhaul_sink::settings::Key]) -> Map<String, Json> {
    keys.iter()
        .filter_map(|key| {
            let node = t.node(key.name)?;
            let is_text = key.default.is_none_or(|d| d.starts_with(['"', '[']));
            let typed = match &node.value {
                Value::Text(text) if !is_text => {
                    serde_json::from_str(text).ok().filter(|v: &Json| v.is_number() || v.is_boolean())
                }
                _ => None,
            };
            Some((key.name.to_owned(), typed.unwrap_or_else(|| json(&node.value))))
        })
        .collect()
}

fn json(value: &Value) -> Json {
    match value {
        Value::Text(text) => Json::String(text.clone()),
        Value::Whole(n) => Json::from(*n),
        Value::Switch(b) => Json::Bool(*b),
        Value::List(items) => Json::Array(items.iter().map(|item| json(&item.value)).collect()),
        Value::Table(entries) => {
            Json::Object(entries.iter().map(|(name, node)| (name.clone(), json(&node.value))).collect())
        }
        Value::Fraction(_) | Value::Other(_) => Json::Null,
    }
}

fn limits(t: &Table, p: &mut Problems) -> LaneLimits {
    let standard = LaneLimits::default();
    let count = |key, p: &mut Problems| t.whole(key, p).map_or(u32::MAX, |n| u32::try_from(n).unwrap_or(u32::MAX));
    let retry_backoff_ms =
        (t.whole("retry_first", p).unwrap_or_default(), t.whole("retry_longest", p).unwrap_or_default());
    if retry_backoff_ms.0 > retry_backoff_ms.1 && retry_backoff_ms.1 > 0 {
        p.at(t.place("retry_first"), &codes::BAD_VALUE, "retry_first is above retry_longest");
    }
    let breaker_longest = t.whole("breaker_longest", p).unwrap_or(standard.breaker_backoff_ms.1);
    LaneLimits {
        send_limit_ms: t.whole("send_limit", p).unwrap_or_default(),
        max_batch: t.whole("max_batch", p).map_or(standard.max_batch, bytes),
        max_batch_bytes: t.whole("max_batch_bytes", p).map_or(standard.max_batch_bytes, bytes),
        rate_milli: t.whole("rate", p),
        concurrency: t.whole("concurrency", p).map(bytes),
        max_queued: t.whole("max_queued", p).map_or(standard.max_queued, bytes),
        max_queued_bytes: t.whole("max_queued_bytes", p).map_or(standard.max_queued_bytes, bytes),
        quick_tries: count("quick_tries", p),
        max_attempts: count("max_attempts", p),
        retry_backoff_ms,
        block_key: t.text("on_dead", p).is_none_or(|word| word == "block_key"),
        breaker_failures: count("breaker_failures", p),
        max_forgotten: t.whole("max_forgotten", p).unwrap_or(standard.max_forgotten),
        breaker_backoff_ms: (standard.breaker_backoff_ms.0.min(breaker_longest), breaker_longest),
        ..standard
    }
}

fn ack_level(word: &str) -> Option<AckLevel> {
    [AckLevel::Received, AckLevel::Flushed, AckLevel::Replicated, AckLevel::Quorum]
        .into_iter()
        .find(|l| l.as_str() == word)
}

fn routes(tables: &[Table], names: &[&str], p: &mut Problems) -> Vec<RouteKeys> {
    let mut routes = vec![];
    for t in tables {
        t.refuse_unknown(None, p);
        let (topic, to) = (t.text("topic", p), t.list("to", p));
        let (rename, tag) = (t.text("rename", p), t.text("tag", p));
        for name in to.iter().filter(|name| !names.contains(&name.as_str())) {
            let near = suggest(name, names.iter().copied()).map(|n| format!("; did you mean {n}?")).unwrap_or_default();
            p.at(
                t.place("to"),
                &codes::UNKNOWN_DESTINATION,
                format!("a route goes to {name:?}, which is no destination{near}"),
            );
        }
        let Some(topic) = topic else { continue };
        let route = RouteKeys { topic, to, rename, tag };
        if route.rewrite().is_some_and(|rewrite| !rewrite.is_clear()) {
            let what = "a `*` in `rename` needs exactly one in `topic` to stand for";
            p.at(t.place("rename"), &codes::BAD_VALUE, what);
        }
        let is_word = |tag: &str| !tag.contains(|c: char| c.is_whitespace() || c.is_control()) && !tag.contains("||");
        if route.tag.as_deref().is_some_and(|tag| !is_word(tag)) {
            p.at(t.place("tag"), &codes::BAD_VALUE, "`tag` must be one word without `||`");
        }
        routes.push(route);
    }
    routes
}

fn inboxes(tables: &[Table], destinations: &[Destination], p: &mut Problems) -> Vec<Inbox> {
    let mut inboxes: Vec<Inbox> = vec![];
    for t in tables {
        t.refuse_unknown(None, p);
        let name = t.text("name", p).unwrap_or_default();
        check_name(t, &name, inboxes.iter().any(|i| i.name == name), p);
        let mut store = StoreOptions::new(t.text("url", p).unwrap_or_default());
        if !store.url.is_empty()
            && let Err(e) = store.kind()
        {
            p.push(t.place("url"), usage(e.into()));
        }
        store.table_prefix = t.text("table_prefix", p).unwrap_or_default();
        let group = t.text("group", p).unwrap_or_default();
        let count = |key, p: &mut Problems| bytes(t.whole(key, p).unwrap_or_default());
        let retention_ms = t.whole("retention", p);
        let window_ms = t.whole("replay_window", p).unwrap_or_default();
        if let Some(retention_ms) = retention_ms.filter(|ms| *ms < window_ms) {
            let what = format!(
                "retention is {retention_ms} ms, below replay_window, {window_ms} ms: what a replay brings again would be new"
            );
            p.at(t.place("retention"), &codes::BAD_VALUE, what);
        }
        let broker = broker_of(t, destinations, p).unwrap_or_else(|| RocketMqConfig::new(""));
        inboxes.push(Inbox {
            name,
            broker,
            store,
            create_tables: t.switch("create_table", p),
            connections: count("connections", p),
            consumer: t.text("consumer", p).unwrap_or_else(|| group.clone()),
            group,
            topics: t.list("topics", p),
            begin: match t.text("from", p).as_deref() {
                Some("end") => Begin::End,
                Some("group") => Begin::Group,
                _ => Begin::Beginning,
            },
            block_key: t.text("on_dead", p).is_none_or(|word| word == "block_key"),
            max_batch: count("max_batch", p),
            max_batch_bytes: count("max_batch_bytes", p),
            memory_limit: count("memory_limit", p),
            retention: retention_ms.map(Duration::from_millis),
        });
    }
    inboxes
}

fn reconciles(tables: &[Table], outboxes: &[Outbox], destinations: &[Destination], p: &mut Problems) -> Vec<Reconcile> {
    let mut all: Vec<Reconcile> = vec![];
    for t in tables {
        t.refuse_unknown(None, p);
        let (destination, query) = (t.text("destination", p), t.text("query", p));
        let outbox = t.text("outbox", p);
        match &outbox {
            Some(name) if outboxes.iter().all(|o| o.name != *name) => {
                p.at(t.place("outbox"), &codes::WHICH_OUTBOX, format!("no outbox is named {name:?}"));
            }
            None if outboxes.len() > 1 => {
                p.at(&t.origin, &codes::WHICH_OUTBOX, "there are several outboxes: name one with outbox");
            }
            _ => {}
        }
        match (&destination, &query) {
            (None, None) => p.at(&t.origin, &codes::MISSING_KEY, "reconcile has neither destination nor query"),
            (Some(_), Some(_)) => {
                p.at(t.place("query"), &codes::BAD_VALUE, "reconcile has both destination and query: leave one out");
            }
            (Some(name), None) => match destinations.iter().find(|d| d.name == *name) {
                None => {
                    let near = suggest(name, destinations.iter().map(|d| d.name.as_str()));
                    let near = near.map(|n| format!("; did you mean {n}?")).unwrap_or_default();
                    let what = format!("reconcile is of {name:?}, which is no destination{near}");
                    p.at(t.place("destination"), &codes::UNKNOWN_DESTINATION, what);
                }
                Some(d) if !d.can_be_read() => {
                    let what = format!("what destination {name}, a {}, has cannot be read", d.kind);
                    p.at(t.place("destination"), &codes::NOTHING_TO_COMPARE, what);
                }
                Some(_) => {}
            },
            (None, Some(_)) => {}
        }
        if query.is_none() && t.node("query_db").is_some() {
            p.at(t.place("query_db"), &codes::BAD_VALUE, "query_db needs query");
        }
        let name = t.text("name", p).or_else(|| destination.clone()).unwrap_or_else(|| "query".to_owned());
        check_name(t, &name, all.iter().any(|r| r.name == name && r.outbox == outbox), p);
        let ms = |key, p: &mut Problems| t.whole(key, p).unwrap_or_default();
        let (every_ms, from_ms, settle_ms) = (ms("every", p), ms("from", p), ms("settle", p));
        if from_ms > 0 && from_ms < every_ms.saturating_add(settle_ms) {
            let what = format!(
                "from is {from_ms} ms, every and settle are {every_ms} and {settle_ms} ms: what is created in between \
                 would never be compared"
            );
            p.at(t.place("from"), &codes::BAD_VALUE, what);
        }
        all.push(Reconcile {
            name,
            outbox,
            destination,
            query,
            query_db: t.text("query_db", p),
            topic: t.text("topic", p),
            every_ms,
            from_ms,
            settle_ms,
            fix: t.switch("fix", p),
            rate_milli: ms("rate", p).max(1),
            memory: ms("memory", p),
            temp: t.text("temp", p).map(PathBuf::from),
            temp_limit: ms("temp_limit", p),
            limit_ms: ms("limit", p),
        });
    }
    all
}

/// The brokers of an inbox: those of a destination, or its own keys.
fn broker_of(t: &Table, destinations: &[Destination], p: &mut Problems) -> Option<RocketMqConfig> {
    let own: Vec<outhaul_sink::settings::Key> =
        rocketmq::config::KEYS.into_iter().filter(|key| keys::BROKER_KEYS.contains(&key.name)).collect();
    let settings = match t.text("destination", p) {
        Some(name) => {
            if let Some(key) = keys::BROKER_KEYS.iter().find(|key| t.node(key).is_some()) {
                p.at(t.place(key), &codes::BAD_VALUE, format!("{key} is that of destination {name}: leave one out"));
            }
            let Some(d) = destinations.iter().find(|d| d.name == name && d.kind == "rocketmq") else {
                let what = format!("no destination of kind rocketmq is named {name:?}");
                p.at(t.place("destination"), &codes::UNKNOWN_DESTINATION, what);
                return None;
            };
            d.settings.clone()
        }
        None if t.node("namesrv").is_none() => {
            p.at(&t.origin, &codes::MISSING_KEY, "inbox has neither namesrv nor destination");
            return None;
        }
        None => Json::Object(settings(t, &own)),
    };
    match RocketMqConfig::read(t.section.name, &settings) {
        Ok(broker) => Some(broker),
        Err(e) => {
            p.push(&t.origin, usage(e.into()));
            None
        }
    }
}

/// Names go into receipts, logs, variables and file names: they stay short and plain. `-` is the destination of what
/// has no route.
fn check_name(t: &Table, name: &str, twice: bool, p: &mut Problems) {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    // One that looks like an option could not be named on the command line.
    if !plain || name.is_empty() || name.len() > 64 || name.starts_with('-') {
        let what =
            format!("name of {} takes at most 64 letters, digits, `_`, `.` and `-`, not at its start", t.section.name);
        p.at(t.place("name"), &codes::BAD_VALUE, what);
    } else if twice {
        p.at(t.place("name"), &codes::NAME_TWICE, format!("another {} is named {name} already", t.section.name));
    }
}

/// The text of a key that was not checked yet.
fn plain_text<'a>(t: &'a Table, key: &str) -> Option<&'a str> {
    match &t.node(key)?.value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// A failure that is the configuration's.
fn usage(mut failure: Failure) -> Failure {
    failure.blame = Blame::Usage;
    failure
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn patterns_that_have_a_topic_in_common() {
        for (a, b) in [("a", "a"), ("*", ""), ("order-*", "*-created"), ("a*c", "ab*"), ("*", "*"), ("a*b*c", "ax*c")] {
            assert!(overlap(a, b) && overlap(b, a), "{a} {b}");
        }
        for (a, b) in [("a", "b"), ("order-*", "payment-*"), ("*a", "*b"), ("a*", ""), ("a*c", "ab")] {
            assert!(!overlap(a, b) && !overlap(b, a), "{a} {b}");
        }
    }
}
