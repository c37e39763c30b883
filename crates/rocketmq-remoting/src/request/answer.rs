//! What answers have in common.

use std::str::FromStr;

use serde::de::DeserializeOwned;

use super::lenient_json;
use crate::code::{RequestCode, ResponseCode};
use crate::command::Command;
use crate::error::Error;

/// An answer that says no more than yes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The peer's explanation, if it gave one.
    pub remark: Option<String>,
}

/// An answer that is an offset of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetAnswer {
    /// Messages from the beginning of the queue.
    pub offset: i64,
    /// The peer's explanation, if it gave one.
    pub remark: Option<String>,
}

/// Turns any code but SUCCESS into an error.
pub(super) fn success(request: RequestCode, answer: &Command) -> Result<(), Error> {
    if answer.response_code() == ResponseCode::Success { Ok(()) } else { Err(refused(request, answer)) }
}

pub(super) fn refused(request: RequestCode, answer: &Command) -> Error {
    Error::Refused { request, code: answer.response_code(), remark: answer.remark.clone() }
}

pub(super) fn acknowledged(request: RequestCode, answer: Command) -> Result<Acknowledged, Error> {
    success(request, &answer)?;
    Ok(Acknowledged { remark: answer.remark })
}

pub(super) fn offset(request: RequestCode, answer: Command) -> Result<OffsetAnswer, Error> {
    success(request, &answer)?;
    Ok(OffsetAnswer { offset: number(request, &answer, "offset")?, remark: answer.remark })
}

/// A mandatory field that is a number or another text with a form.
pub(super) fn number<T: FromStr>(request: RequestCode, answer: &Command, name: &'static str) -> Result<T, Error> {
    answer.ext.get(name).and_then(|text| text.parse().ok()).ok_or(Error::Answer { request, what: name })
}

/// A body that is JSON, in the dialect of fastjson.
pub(super) fn json<T: DeserializeOwned>(request: RequestCode, answer: &Command) -> Result<T, Error> {
    serde_json::from_slice(&lenient_json::quote_integer_keys(&answer.body))
        .map_err(|_| Error::Answer { request, what: "body" })
}
