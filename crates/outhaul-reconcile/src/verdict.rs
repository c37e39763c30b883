//! What is to be said of an id.

use crate::merge::Group;
use crate::record::Expectation;

/// What is to be said of an id. Each has one verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    /// Expected, and there.
    Fine,
    /// Expected, and not there.
    Missing,
    /// There more often than expected.
    Duplicate,
    /// There, and nobody knows it.
    Stray,
    /// Not there, and under way or too young for that to mean anything.
    Pending,
    /// Not there, and set aside with its reason.
    Parked,
    /// Not there, and given up by an operator.
    GivenUp,
    /// Not asked for.
    Aside,
}

/// How many ids of each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Expected ids.
    pub checked: u64,
    /// See [`Verdict::Missing`].
    pub missing: u64,
    /// See [`Verdict::Duplicate`].
    pub duplicate: u64,
    /// See [`Verdict::Stray`].
    pub stray: u64,
    /// See [`Verdict::Pending`].
    pub pending: u64,
    /// See [`Verdict::Parked`].
    pub parked: u64,
    /// See [`Verdict::GivenUp`].
    pub given_up: u64,
}

impl Counts {
    /// Counts an id.
    pub const fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Fine => {}
            Verdict::Missing => self.missing += 1,
            Verdict::Duplicate => self.duplicate += 1,
            Verdict::Stray => self.stray += 1,
            Verdict::Pending => self.pending += 1,
            Verdict::Parked => self.parked += 1,
            Verdict::GivenUp => self.given_up += 1,
            Verdict::Aside => {}
        }
        if !matches!(verdict, Verdict::Stray | Verdict::Aside) {
            self.checked += 1;
        }
    }
}

/// Judges an id by what both sides have of it. Of several expected records the one that demands most decides: one that must
/// be there, then one that is under way, is parked, was given up.
pub fn judge(group: &Group) -> Verdict {
    use Expectation::{GivenUp, Must, Parked, Pending};
    let has = |expectation| group.expected.of(expectation) > 0;
    let known = group.expected.count + group.expected.echoes > 0;
    if ![Must, Pending, Parked, GivenUp].into_iter().any(has) {
        let asked = group.actual.of(Must) > 0;
        return if !known && asked { Verdict::Stray } else { Verdict::Aside };
    }
    // What is under way may have been counted under another expectation already.
    let copies = match group.expected.count - group.expected.of(Pending) {
        0 => group.expected.count,
        copies => copies,
    };
    if group.actual.count > copies {
        return Verdict::Duplicate;
    }
    if group.actual.count > 0 || group.actual.echoes > 0 {
        return Verdict::Fine;
    }
    if has(Must) {
        Verdict::Missing
    } else if has(Pending) {
        Verdict::Pending
    } else if has(Parked) {
        Verdict::Parked
    } else {
        Verdict::GivenUp
    }
}
