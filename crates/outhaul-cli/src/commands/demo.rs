//! `outhaul demo`: the shop whose order service is killed, with and without Outhaul.

use outhaul_demo::DemoError;

use crate::codes;
use crate::failure::{Exit, Failure, Outcome};
use crate::output;

/// Shows the demo and prints its table.
///
/// # Errors
/// It cannot be shown, or its numbers are not what they must be.
pub async fn run(options: &outhaul_demo::Options, json: bool) -> Outcome {
    let outcome = outhaul_demo::run(options.clone()).await.map_err(|e| match e {
        DemoError::NotEmpty(_) => Failure::new(&codes::FOLDER_IN_USE, e.to_string()),
        e => Failure::new(&codes::DEMO, e.to_string()),
    })?;
    if json {
        output::json(&outcome)?;
    } else {
        output::line(&outcome)?;
    }
    if outcome.holds() {
        return Ok(Exit::Fine);
    }
    Err(Failure::new(&codes::DEMO, format!("the numbers are not what they must be (seed {})", outcome.seed)).into())
}
