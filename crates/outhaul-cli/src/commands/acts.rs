//! `outhaul acts`: what operators ordered lately, and how far it has got.

use outhaul_store::ActsWanted;
use serde_json::json;

use super::act::{ActReport, joined};
use super::{chosen, of_outbox, open};
use crate::arguments::Acts;
use crate::failure::{Exit, Outcome};
use crate::{config, output};

/// Shows the newest acts, the newest last; exit code 3 if one was refused.
///
/// # Errors
/// A database's, or the configuration's.
pub async fn run(a: &Acts, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let mut exit = Exit::Fine;
    for outbox in chosen(&config, a.which.outbox.as_deref())? {
        let store = open(outbox).await?;
        let records = store.acts(&ActsWanted::Newest(a.limit)).await.map_err(|e| of_outbox(e.into(), outbox));
        store.close().await;
        let acts = joined(records?);
        if acts.iter().any(|act| act.state == "refused") {
            exit = Exit::Attention;
        }
        if json {
            output::json(&json!({ "outbox": outbox.name, "acts": acts }))?;
        } else {
            output::lines(acts.iter().map(ActReport::story))?;
        }
    }
    Ok(exit)
}
