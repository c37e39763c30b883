//! `outhaul cancel ID`: a scheduled message is taken back before it is due.

use std::sync::Arc;

use outhaul_core::act::Verb;
use outhaul_store::{ActsWanted, CancelRequest, Store, StoreError};
use serde_json::json;

use super::locate::{Place, locate};
use super::{act, of_outbox, open};
use crate::arguments::Cancel;
use crate::failure::{Exit, Failure, Outcome};
use crate::timestamp::format_us;
use crate::{codes, config, output};

/// Takes it out of the outbox table. No relay is needed for it. Whether it or a relay was first is up to the database:
/// what is cancelled is never delivered.
///
/// # Errors
/// There is no message of this id that can still be cancelled; the database's, or the configuration's.
pub async fn run(a: &Cancel, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let store = open(outbox).await?;
    let actor = act::actor(a.actor.as_deref());
    let request = CancelRequest { id: a.id.clone(), actor, why: a.why.clone() };
    let answer = async {
        let numbers = store.cancel(&request).await?;
        let why_not = if numbers.is_empty() { why_not(&store, &a.id).await? } else { String::new() };
        Ok::<_, StoreError>((numbers, why_not))
    };
    let answer = answer.await.map_err(|e| of_outbox(e.into(), outbox));
    store.close().await;
    let (numbers, why_not) = answer?;
    if numbers.is_empty() {
        return Err(Failure::new(&codes::NOT_CANCELLED, format!("{:?} cannot be cancelled: {why_not}", a.id)).into());
    }
    for number in numbers {
        if json {
            output::json(&json!({ "id": a.id, "cancelled": true, "act": number.0 }))?;
        } else {
            output::line(format_args!("{} is cancelled (act {number})", a.id))?;
        }
    }
    Ok(Exit::Fine)
}

/// Where the message is instead.
async fn why_not(store: &Arc<dyn Store>, id: &str) -> Result<String, StoreError> {
    Ok(match locate(store, id, None).await?.first() {
        Some(Place::Hot { due_at_us: Some(at), .. }) => format!("it was due at {}", format_us(*at)),
        Some(Place::Hot { due_at_us: None, .. }) => "it waits for no time, and a relay may have read it".to_owned(),
        Some(Place::Logged { moved_at_us, .. }) => format!("it was moved at {}, to be sent", format_us(*moved_at_us)),
        Some(Place::Status { status, .. }) => format!("its status is {status}"),
        Some(Place::Parked { .. }) => "it was moved, and is parked".to_owned(),
        None => {
            let acts = store.acts(&ActsWanted::MessageId(id.to_owned())).await?;
            match acts.iter().any(|a| a.act.verb == Verb::Cancel) {
                true => "it was cancelled before".to_owned(),
                false => "no message has this id".to_owned(),
            }
        }
    })
}
