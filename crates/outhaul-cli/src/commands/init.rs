//! `outhaul init`: the tables, or their DDL.

use outhaul_store::{DatabaseKind, InitPlan, PayloadType, StoreOptions};
use serde_json::json;

use super::{chosen, of_outbox, open_as_it_is};
use crate::arguments::{Init, Payload, ShardBy};
use crate::config::{Outbox, Sources};
use crate::failure::{Exit, Failure, Outcome};
use crate::{config, output};

/// Makes the tables of every outbox, or of the one that was named.
///
/// # Errors
/// The database's, or the configuration's.
pub async fn run(a: &Init, json: bool) -> Outcome {
    let config = config::load(Sources { inbox: a.inbox, ..a.source.sources() })?;
    if a.upgrade {
        for outbox in chosen(&config, a.which.outbox.as_deref())? {
            upgrade(outbox, a.print, json).await?;
        }
        return Ok(Exit::Fine);
    }
    if a.inbox {
        if a.which.outbox.is_none() && !config.inboxes.is_empty() {
            for configured in &config.inboxes {
                let made = inbox(&configured.store, a.print, json).await;
                made.map_err(|e| e.while_doing(format_args!("inbox {}", configured.name)))?;
            }
            return Ok(Exit::Fine);
        }
        if config.outboxes.is_empty() {
            config.outbox(None)?;
        }
        for outbox in chosen(&config, a.which.outbox.as_deref())? {
            inbox(&outbox.store, a.print, json).await.map_err(|e| of_outbox(e, outbox))?;
        }
        return Ok(Exit::Fine);
    }
    let plan = InitPlan {
        shards: a.shards,
        payload: match a.payload {
            Payload::Bytes => PayloadType::Bytes,
            Payload::Text => PayloadType::Text,
            Payload::Json => PayloadType::Json,
        },
        shard_by_key: a.shard_by == ShardBy::Key,
    };
    for outbox in chosen(&config, a.which.outbox.as_deref())? {
        let store = open_as_it_is(outbox).await?;
        if a.print {
            let ddl = store.ddl(&plan);
            if json {
                output::json(&json!({ "outbox": outbox.name, "ddl": ddl }))?;
            } else {
                output::lines(ddl.lines())?;
            }
        } else {
            let made = async {
                store.init(&plan).await?;
                store.inspect().await
            };
            let info = made.await.map_err(|e| of_outbox(e.into(), outbox))?;
            let table = outbox.store.status.as_ref().map_or_else(|| outbox.store.outbox(), |t| t.table.clone());
            let shards = info.shards;
            if json {
                output::json(
                    &json!({ "outbox": outbox.name, "table": table, "shards": shards, "server": info.server }),
                )?;
            } else {
                let plural = if shards == 1 { "" } else { "s" };
                output::line(format_args!(
                    "{}: table {table} with {shards} shard{plural} is ready ({})",
                    outbox.name, info.server
                ))?;
            }
        }
        store.close().await;
    }
    Ok(Exit::Fine)
}

/// The tables of a consumer in this database.
async fn inbox(store: &StoreOptions, print: bool, json: bool) -> Result<(), Failure> {
    let inbox = outhaul_store::inbox::open(store.clone(), 1).await?;
    let tables = ["inbox", "inbox_message", "inbox_queue"].map(|name| store.table(name));
    let (ddl, made) = if print { (inbox.ddl(), Ok(())) } else { (String::new(), inbox.init().await) };
    inbox.close().await;
    made?;
    match (print, json) {
        (true, true) => output::json(&json!({ "tables": tables, "ddl": ddl })),
        (true, false) => {
            let grants = match store.kind()? {
                DatabaseKind::Sqlite => vec![],
                DatabaseKind::MySql | DatabaseKind::Postgres => {
                    let about = "-- The consumer's user, on each table that it uses; the relay's user on the second, that of \
                                 `outhaul inbox` on the second and third:";
                    let grant = |table| format!("--   GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO consumer;");
                    std::iter::once(about.to_owned()).chain(tables.iter().map(grant)).collect()
                }
            };
            output::lines(grants.iter().map(String::as_str).chain(ddl.lines()))
        }
        (false, true) => output::json(&json!({ "tables": tables })),
        (false, false) => output::line(format_args!("tables {} are ready", tables.join(", "))),
    }
}

/// Tables of the previous version.
async fn upgrade(outbox: &Outbox, print: bool, json: bool) -> Result<(), Failure> {
    let store = open_as_it_is(outbox).await?;
    let result = if print { store.upgrade_plan().await } else { store.upgrade().await };
    store.close().await;
    let found = result.map_err(|e| of_outbox(e.into(), outbox))?;
    if json {
        return output::json(&json!({
            "outbox": outbox.name, "from": found.from, "to": found.to, "done": !print, "statements": found.statements,
            "grants": found.grants,
        }));
    }
    let (name, up_to_date) = (&outbox.name, found.statements.is_empty());
    match (print, up_to_date) {
        (true, true) => output::line(format_args!("-- {name}: the tables are of this version, nothing is missing")),
        (true, false) => {
            let head = format!(
                "-- {name}: from level {} to {}, in this order; relays of the previous version may run",
                found.from, found.to
            );
            let statements = found.statements.iter().map(|s| format!("{s};"));
            let grants = found.grants.iter().map(|g| format!("--   {g};"));
            let note = "-- The relay's user, where it is not the tables' owner:".to_owned();
            let note = Some(note).filter(|_| !found.grants.is_empty());
            output::lines(std::iter::once(head).chain(statements).chain(note).chain(grants))
        }
        (false, true) => output::line(format_args!("{name}: the tables are of this version already")),
        (false, false) => {
            let done = found.statements.len();
            output::line(format_args!("{name}: the tables are of this version now ({done} statements)"))?;
            if !found.grants.is_empty() {
                eprintln!("if the relay connects as another user, it needs these rights too:");
                found.grants.iter().for_each(|g| eprintln!("  {g};"));
            }
            Ok(())
        }
    }
}
