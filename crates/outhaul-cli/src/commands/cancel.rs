//! `outhaul cancel ID`: a scheduled message is taken back before it is due.

use outhaul_store::CancelRequest;
use serde_json::json;

use super::{act, of_outbox, open};
use crate::arguments::Cancel;
use crate::failure::{Exit, Failure, Outcome};
use crate::{codes, config, output};

/// Takes it out of the outbox table. No relay is needed for it.
///
/// # Errors
/// There is no message of this id that can still be cancelled; the database's, or the configuration's.
pub async fn run(a: &Cancel, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let store = open(outbox).await?;
    let actor = act::actor(a.actor.as_deref());
    let request = CancelRequest { id: a.id.clone(), actor, why: a.why.clone() };
    let cancelled = store.cancel(&request).await.map_err(|e| of_outbox(e.into(), outbox));
    store.close().await;
    let numbers = cancelled?;
    if numbers.is_empty() {
        let what = format!("no message with the id {:?} waits for a time that lies more than two seconds ahead", a.id);
        return Err(Failure::new(&codes::NOT_CANCELLED, what).into());
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
