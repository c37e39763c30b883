//! All that is wrong with a configuration, together.

use std::collections::BTreeSet;

use super::value::Origin;
use crate::codes::Code;
use crate::failure::{Failure, Failures};

/// Collects failures and puts the place in front of each.
#[derive(Debug)]
pub struct Problems {
    file: String,
    found: Vec<Failure>,
    seen: BTreeSet<String>,
}

impl Problems {
    /// None yet, in this file.
    pub fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), found: vec![], seen: BTreeSet::new() }
    }

    /// Name of the file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// A problem at a place.
    pub fn at(&mut self, origin: &Origin, code: &'static Code, message: impl std::fmt::Display) {
        self.push(origin, Failure::new(code, message.to_string()));
    }

    /// A problem at a place that has a code of its own.
    pub fn push(&mut self, origin: &Origin, failure: Failure) {
        let place = match origin {
            Origin::Line(line) => format!("{} line {line}", self.file),
            Origin::Variable(_) | Origin::Argument(_) => origin.to_string(),
        };
        self.without_place(failure.while_doing(place));
    }

    /// A problem of the configuration as a whole.
    pub fn without_place(&mut self, failure: Failure) {
        if self.seen.insert(failure.message.clone()) {
            self.found.push(failure);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The result: what was read if nothing was wrong.
    ///
    /// # Errors
    /// All problems.
    pub fn into_result<T>(self, read: T) -> Result<T, Failures> {
        if self.found.is_empty() { Ok(read) } else { Err(Failures(self.found)) }
    }
}
