//! `outhaul explain`: the page of an error code.

use outhaul_sink::settings::suggest;
use serde_json::json;

use crate::arguments::Explain;
use crate::codes::{self, PAGES, title};
use crate::failure::{Exit, Failure, Outcome};
use crate::output;

/// Prints a page, or the list of codes.
///
/// # Errors
/// There is no such code.
pub fn run(a: &Explain, json: bool) -> Outcome {
    let Some(asked) = &a.code else {
        if json {
            output::json(
                &PAGES.iter().map(|(code, page)| json!({ "code": code, "title": title(page) })).collect::<Vec<_>>(),
            )?;
        } else {
            output::lines(PAGES.iter().map(|(_, page)| title(page)))?;
        }
        return Ok(Exit::Fine);
    };
    let digits = asked.trim().to_ascii_uppercase();
    let wanted = format!("OUT-{}", digits.trim_start_matches("OUT").trim_start_matches('-'));
    let Some((code, page)) = PAGES.iter().find(|(code, _)| *code == wanted) else {
        let near = suggest(&wanted.to_lowercase(), PAGES.iter().map(|(code, _)| *code))
            .map(|n| format!("; did you mean {n}?"));
        let what = format!("there is no code {wanted}{}", near.unwrap_or_default());
        return Err(Failure::new(&codes::NO_SUCH_CODE, what).into());
    };
    if json {
        output::json(&json!({ "code": code, "title": title(page), "page": page }))?;
    } else {
        output::lines(page.lines())?;
    }
    Ok(Exit::Fine)
}
