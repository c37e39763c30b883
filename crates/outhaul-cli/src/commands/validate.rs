//! `outhaul validate`: the configuration, the databases and the destinations, without delivering anything.

use outhaul_core::receipt::AckLevel;
use outhaul_relay::check_folder;
use outhaul_sink::{Sink, SinkCode, SinkError, SinkInfo};
use outhaul_store::{InitPlan, Store, StoreError, StoreErrorKind};
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::validate_inbox::{self, InboxFinding};
use super::{of_outbox, open_as_it_is, prune};
use crate::arguments::Validate;
use crate::codes;
use crate::config::{Config, Destination, Outbox, Sources};
use crate::failure::{Blame, Exit, Failure, Failures, Outcome};
use crate::{config, output};

/// Limit of a destination's start.
const START_LIMIT: Duration = Duration::from_secs(15);

#[derive(Debug, Serialize)]
struct Report {
    outboxes: Vec<OutboxFinding>,
    destinations: Vec<DestinationFinding>,
    inboxes: Vec<InboxFinding>,
    /// Where what is pruned is exported to.
    export: Option<ExportFinding>,
    warnings: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct OutboxFinding {
    name: String,
    ok: bool,
    server: Option<String>,
    shards: Option<u16>,
    payload: Option<String>,
    missing_ddl: Option<String>,
    error: Option<Failure>,
}

#[derive(Debug, Serialize)]
struct DestinationFinding {
    name: String,
    kind: String,
    ok: bool,
    ack_level: Option<&'static str>,
    findings: Vec<Found>,
    error: Option<Failure>,
}

#[derive(Debug, Serialize)]
struct ExportFinding {
    folder: String,
    ok: bool,
    error: Option<Failure>,
}

#[derive(Debug, Serialize)]
struct Found {
    subject: String,
    text: String,
    attention: bool,
}

/// Looks at everything. Exit code 3 if all that is wrong are missing tables, or topics of an inbox that nobody can read yet.
///
/// # Errors
/// All that failed.
pub async fn run(a: &Validate, json: bool) -> Outcome {
    let config = config::load(Sources { to: &a.to, inbox: true, ..a.source.sources() })?;
    if config.outboxes.is_empty() && config.inboxes.is_empty() {
        return Err(Failure::new(&codes::NO_DATABASE, "neither an outbox nor an inbox is configured").into());
    }
    let mut report = Report { outboxes: vec![], destinations: vec![], inboxes: vec![], export: None, warnings: vec![] };
    for outbox in &config.outboxes {
        let finding = look_at_outbox(&config, outbox, &mut report.warnings).await;
        report.outboxes.push(finding);
    }
    for destination in &config.destinations {
        let finding = look_at_destination(&config, destination, &mut report.warnings).await;
        report.destinations.push(finding);
    }
    for inbox in &config.inboxes {
        report.inboxes.push(validate_inbox::look(inbox).await);
    }
    if let Some(folder) = config.relay.export.as_ref().filter(|_| !config.outboxes.is_empty()) {
        let error = check_folder(folder).await.err().map(|e| prune::failure(&e));
        report.export = Some(ExportFinding { folder: folder.display().to_string(), ok: error.is_none(), error });
    }
    if config.destinations.is_empty() && !config.outboxes.is_empty() {
        report.warnings.push("there is no destination: a relay would have nothing to do".into());
    }
    let without_route = |d: &&Destination| config.routes.iter().all(|route| !route.goes_to(&d.name));
    // Without an outbox a destination is where an inbox has its brokers from.
    for d in config.destinations.iter().filter(without_route).filter(|_| !config.outboxes.is_empty()) {
        report.warnings.push(format!("no route goes to destination {}: nothing will be delivered to it", d.name));
    }
    if json {
        output::json(&report)?;
    } else {
        output::lines(sentences(&report))?;
    }
    let mut failures: Vec<Failure> = report.outboxes.into_iter().filter_map(|o| o.error).collect();
    failures.extend(report.destinations.into_iter().filter_map(|d| d.error));
    failures.extend(report.export.and_then(|e| e.error));
    let look = report.inboxes.iter().flat_map(|i| &i.topics).any(|topic| topic.attention);
    failures.extend(report.inboxes.into_iter().flat_map(|i| i.errors));
    if failures.is_empty() {
        return Ok(if look { Exit::Attention } else { Exit::Fine });
    }
    let failures = Failures(failures);
    if failures.0.iter().all(|f| f.code == codes::TABLES_MISSING.code) {
        failures.report(json);
        return Ok(Exit::Attention);
    }
    Err(failures)
}

async fn look_at_outbox(config: &Config, outbox: &Outbox, warnings: &mut Vec<String>) -> OutboxFinding {
    let mut finding = OutboxFinding { name: outbox.name.clone(), ..OutboxFinding::default() };
    let store = match open_as_it_is(outbox).await {
        Ok(store) => store,
        Err(e) => {
            finding.error = Some(e);
            return finding;
        }
    };
    match store.inspect().await {
        Ok(info) => {
            finding.ok = info.stray.is_none();
            finding.error = info.stray.map(|e| of_outbox(e.into(), outbox));
            finding.server = Some(info.server);
            finding.shards = Some(info.shards);
            finding.payload = Some(format!("{:?}", info.payload).to_lowercase());
            warnings.extend(info.warnings.into_iter().map(|w| format!("outbox {}: {w}", outbox.name)));
            let left = left_behind(&store, config).await.unwrap_or_default();
            warnings.extend(left.into_iter().map(|w| format!("outbox {}: {w}", outbox.name)));
        }
        Err(e) if e.kind == StoreErrorKind::NotInitialised => {
            // What is missing is all of it, or what the message names; the DDL leaves alone what is there.
            finding.missing_ddl = Some(store.ddl(&InitPlan::default()));
            finding.error = Some(of_outbox(Failure::new(&codes::TABLES_MISSING, e.message), outbox));
        }
        Err(e) => finding.error = Some(of_outbox(e.into(), outbox)),
    }
    store.close().await;
    finding
}

/// Destinations that are not configured any more, and have not settled all that is in the log.
pub(super) async fn left_behind(store: &Arc<dyn Store>, config: &Config) -> Result<Vec<String>, StoreError> {
    if config.destinations.is_empty() {
        return Ok(vec![]);
    }
    let mut names = BTreeSet::new();
    for s in store.status().await? {
        let behind = s.lanes.lanes.iter().map(|(lane, _)| lane).filter(|lane| lane.cursor < s.log_end);
        names.extend(behind.map(|lane| lane.destination.clone()));
    }
    names.retain(|name| config.destinations.iter().all(|d| d.name != *name));
    let warning = |name| {
        format!(
            "{name} is not configured any more and has not settled all of the log, which is kept from its cursor on; put it back \
             until it is settled, or give it up with `outhaul destination drop {name}`"
        )
    };
    Ok(names.into_iter().map(warning).collect())
}

/// Limit of looking at a destination's parts.
const EXAMINE_LIMIT: Duration = Duration::from_secs(60);

async fn look_at_destination(config: &Config, d: &Destination, warnings: &mut Vec<String>) -> DestinationFinding {
    let mut finding = DestinationFinding {
        name: d.name.clone(),
        kind: d.kind.clone(),
        ok: false,
        ack_level: None,
        findings: vec![],
        error: None,
    };
    let sink = match config.sink(d) {
        Ok(sink) => sink,
        Err(e) => {
            finding.error = Some(e.into());
            return finding;
        }
    };
    match answered(d, sink.look()).await {
        Ok(info) => {
            finding.ok = true;
            finding.ack_level = Some(info.level.as_str());
            warnings.extend(info.warnings.into_iter().map(|w| format!("destination {}: {w}", d.name)));
        }
        Err(e) => finding.error = Some(e),
    }
    match tokio::time::timeout(EXAMINE_LIMIT, sink.examine(&config.topics_of(&d.name))).await {
        Ok(all) => {
            let found = |f: outhaul_sink::Finding| Found { subject: f.subject, text: f.text, attention: f.attention };
            finding.findings = all.into_iter().map(found).collect();
        }
        Err(_) => warnings.push(format!("destination {}: its parts did not answer in time", d.name)),
    }
    sink.close().await;
    finding
}

/// Whether a failure says that less is proven than demanded.
pub(super) fn is_too_weak(f: &Failure) -> bool {
    f.code == codes::ACK_TOO_WEAK.code || f.code == SinkCode::AckTooWeak.code()
}

/// Starts a sink and sees that it proves what is demanded.
///
/// # Errors
/// It does not start within the limit, or proves less.
pub(super) async fn start(d: &Destination, sink: &Arc<dyn Sink>) -> Result<SinkInfo, Failure> {
    answered(d, sink.start()).await
}

async fn answered(
    d: &Destination,
    starting: impl Future<Output = Result<SinkInfo, SinkError>>,
) -> Result<SinkInfo, Failure> {
    let of_destination = |f: Failure| f.while_doing(format_args!("destination {}", d.name));
    let info = match tokio::time::timeout(START_LIMIT, starting).await {
        Ok(started) => started.map_err(|e| of_destination(e.into()))?,
        Err(_) => {
            let limit = START_LIMIT.as_secs();
            let f = Failure {
                code: codes::SEND_LIMIT.code.into(),
                message: format!("it did not start within {limit} s"),
                remedy: "look at the destination's host, port and load".into(),
                blame: Blame::Failure,
            };
            return Err(of_destination(f));
        }
    };
    match d.require_ack {
        Some(least) if info.level < least && !info.proves_later => Err(of_destination(ack_too_weak(least, &info))),
        _ => Ok(info),
    }
}

fn ack_too_weak(least: AckLevel, info: &SinkInfo) -> Failure {
    let why = info.warnings.first().map(|w| format!(": {w}")).unwrap_or_default();
    let what =
        format!("require_ack is {}, but an acknowledgement proves only {}{why}", least.as_str(), info.level.as_str());
    Failure::new(&codes::ACK_TOO_WEAK, what)
}

fn sentences(report: &Report) -> Vec<String> {
    let mut lines = vec![];
    for o in &report.outboxes {
        match (&o.server, o.shards) {
            (Some(server), Some(shards)) => lines.push(format!(
                "{} outbox {}: {server}, {shards} shard{}, payload as {}",
                if o.ok { "ok  " } else { "FAIL" },
                o.name,
                if shards == 1 { "" } else { "s" },
                o.payload.as_deref().unwrap_or("bytes")
            )),
            _ => lines.push(format!("FAIL outbox {}", o.name)),
        }
    }
    for d in &report.destinations {
        match d.ack_level {
            Some(level) => {
                lines.push(format!("ok   destination {}: {}, an acknowledgement proves `{level}`", d.name, d.kind))
            }
            None => lines.push(format!("FAIL destination {}: {}", d.name, d.kind)),
        }
        for f in &d.findings {
            let mark = if f.attention { "look" } else { "  ok" };
            lines.push(format!("{mark}   {}: {}", f.subject, f.text));
        }
    }
    report.inboxes.iter().for_each(|i| lines.extend(i.sentences()));
    if let Some(e) = &report.export {
        lines.push(format!("{} export to {}", if e.ok { "ok  " } else { "FAIL" }, e.folder));
    }
    lines.extend(report.warnings.iter().map(|w| format!("warn {w}")));
    let of_outboxes = report.outboxes.iter().filter_map(|o| o.missing_ddl.as_ref());
    for ddl in of_outboxes.chain(report.inboxes.iter().filter_map(|i| i.missing_ddl.as_ref())) {
        lines.push(String::new());
        lines.extend(ddl.lines().map(str::to_owned));
    }
    lines
}
