//! `outhaul init`: the tables, or their DDL.

use outhaul_store::{InitPlan, PayloadType};
use serde_json::json;

use super::{chosen, of_outbox, open};
use crate::arguments::{Init, Payload, ShardBy};
use crate::failure::{Exit, Outcome};
use crate::{config, output};

/// Makes the tables of every outbox, or of the one that was named.
///
/// # Errors
/// The database's, or the configuration's.
pub async fn run(a: &Init, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
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
        let store = open(outbox).await?;
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
            let (table, shards) = (outbox.store.outbox(), info.shards);
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
