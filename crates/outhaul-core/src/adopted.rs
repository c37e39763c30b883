//! A status table: rows stay where the application put them, and are marked once they were delivered.
//!
//! Such a table has no `seq`. [`Ledger`] gives its rows numbers of its own, in the order in which they are found, and
//! knows which rows it has handed out and which of those may still be waiting in the table. So a row is found by looking at
//! all that wait, by `created_at` and id, and is new if the ledger does not know it: nothing depends on the order in which
//! transactions commit, nor on rows that wait already.
//!
//! What is known is a hash of the id. Two ids with the same hash are no danger: the second is found once the first was
//! marked.

use std::collections::{BTreeMap, HashSet, VecDeque};

use xxhash_rust::xxh3::xxh3_64;

use crate::message::{Position, Seq};

/// The most rows that may be known at a time; beyond it no more are handed out until some were marked. 16 bytes each.
pub const KNOWN_MAX: usize = 16 << 20;

/// Number of a look at the table: they are given in the order in which looks begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Look(u64);

/// Which rows of a status table were handed out.
#[derive(Debug, Default)]
pub struct Ledger {
    last: u64,
    /// Handed out and not in the log yet: id by number.
    open: BTreeMap<Seq, String>,
    /// Handed out, and possibly waiting in the table still.
    known: HashSet<u64>,
    /// Marked, with the newest look that had begun by then: that look may still show them as waiting.
    fading: VecDeque<(Look, Vec<u64>)>,
    looks: u64,
    under_way: Vec<Look>,
    /// Looks up to this one began for an earlier owner: what they found says nothing.
    stale: Look,
}

fn hash(id: &str) -> u64 {
    xxh3_64(id.as_bytes())
}

impl Ledger {
    /// A shard has a new owner: what is known is told anew ([`Ledger::know`]). Numbers go on where they were.
    pub fn begin_anew(&mut self) {
        self.open.clear();
        self.known.clear();
        self.fading.clear();
        self.stale = Look(self.looks);
    }

    /// Whether a look began before the shard had this owner: what it found is not to be taken.
    pub fn is_stale(&self, look: Look) -> bool {
        look <= self.stale
    }

    /// A row that is in the log, or parked, and may be waiting in the table.
    pub fn know(&mut self, id: &str) {
        self.known.insert(hash(id));
    }

    /// Begins a look at the table.
    pub fn begin(&mut self) -> Look {
        self.looks += 1;
        self.under_way.push(Look(self.looks));
        Look(self.looks)
    }

    /// A look has ended: what it found was asked of the ledger.
    pub fn end(&mut self, look: Look) {
        self.under_way.retain(|l| *l != look);
        let oldest = self.under_way.iter().min().copied().unwrap_or(Look(u64::MAX));
        while self.fading.front().is_some_and(|(newest_then, _)| *newest_then < oldest) {
            for hash in self.fading.pop_front().map(|(_, hashes)| hashes).unwrap_or_default() {
                self.known.remove(&hash);
            }
        }
    }

    /// Whether a row with this id was handed out and is not marked for certain.
    pub fn knows(&self, id: &str) -> bool {
        self.known.contains(&hash(id))
    }

    /// Whether no more rows may be handed out.
    pub fn is_full(&self) -> bool {
        self.known.len() >= KNOWN_MAX
    }

    /// How many rows are known.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Gives a row that is not known its number.
    pub fn take(&mut self, id: &str) -> Option<Seq> {
        if !self.known.insert(hash(id)) {
            return None;
        }
        self.last += 1;
        self.open.insert(Seq(self.last), id.to_owned());
        Some(Seq(self.last))
    }

    /// Rows that were handed out and are not in the log, with numbers in a range.
    pub fn open_within(&self, first: u64, last: u64) -> Vec<(Seq, String)> {
        self.open.range(Seq(first)..=Seq(last)).map(|(seq, id)| (*seq, id.clone())).collect()
    }

    /// A row that was handed out waits no more, and is not in the log: somebody took it away or marked it. It may come
    /// back.
    pub fn vanished(&mut self, seq: Seq) {
        if let Some(id) = self.open.remove(&seq) {
            self.known.remove(&hash(&id));
        }
    }

    /// Rows are in the log.
    pub fn logged(&mut self, seqs: impl IntoIterator<Item = Seq>) {
        for seq in seqs {
            self.open.remove(&seq);
        }
    }

    /// The number at or below which nothing is open: no row with such a number will ever be handed out again.
    pub fn resolved(&self) -> Seq {
        self.open.keys().next().map_or(Seq(self.last), |first| Seq(first.0.saturating_sub(1)))
    }

    /// Rows were marked, and that has committed.
    pub fn marked<'a>(&mut self, ids: impl IntoIterator<Item = &'a str>) {
        let hashes: Vec<u64> = ids.into_iter().map(hash).collect();
        if self.under_way.is_empty() {
            for hash in hashes {
                self.known.remove(&hash);
            }
        } else {
            self.fading.push_back((Look(self.looks), hashes));
        }
    }
}

/// Up to which position each destination's messages have been marked in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks(BTreeMap<String, Position>);

impl Marks {
    /// As [`Marks::encode`] wrote them. What cannot be read counts as nothing marked: marking again changes nothing.
    pub fn decode(text: &str) -> Self {
        let read: Option<BTreeMap<String, u64>> = serde_json::from_str(text).ok();
        Self(read.unwrap_or_default().into_iter().map(|(name, n)| (name, Position(n))).collect())
    }

    /// As text.
    pub fn encode(&self) -> String {
        let plain: BTreeMap<&str, u64> = self.0.iter().map(|(name, p)| (name.as_str(), p.0)).collect();
        serde_json::to_string(&plain).unwrap_or_default()
    }

    /// Every position below it was dealt with for a destination; None: nothing is known of it.
    pub fn of(&self, destination: &str) -> Option<Position> {
        self.0.get(destination).copied()
    }

    /// Sets it.
    pub fn set(&mut self, destination: &str, to: Position) {
        self.0.insert(destination.to_owned(), to);
    }

    /// The position below which nothing of these destinations is left to mark, at most `end`.
    pub fn lowest<'a>(&self, destinations: impl IntoIterator<Item = &'a str>, end: Position) -> Position {
        destinations.into_iter().map(|d| self.of(d).unwrap_or_default()).min().unwrap_or(end).min(end)
    }
}

/// How far the rows of a status table are on their way into native mode, as it is kept in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The table.
    pub table: String,
    /// The end of the log when it began: below it are messages whose rows may not be marked yet.
    pub until: Position,
    /// How far it is.
    pub stage: Stage,
}

/// A stage of a [`Migration`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What was in the log before it began is marked in the table.
    Marking,
    /// What waits in the table is moved into the outbox table.
    Feeding,
    /// Nothing waits in the table, and nobody looks at it any more.
    Finished,
}

impl Stage {
    /// As it is written.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Marking => "marking",
            Self::Feeding => "feeding",
            Self::Finished => "finished",
        }
    }
}

impl Migration {
    /// As [`Migration::encode`] wrote it. None: there is none.
    pub fn decode(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ' ');
        let stage = [Stage::Marking, Stage::Feeding, Stage::Finished];
        let word = parts.next()?;
        Some(Self {
            stage: stage.into_iter().find(|s| s.word() == word)?,
            until: Position(parts.next()?.parse().ok()?),
            table: parts.next()?.to_owned(),
        })
    }

    /// As text.
    pub fn encode(&self) -> String {
        format!("{} {} {}", self.stage.word(), self.until, self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_handed_out_once_until_it_was_marked() {
        let mut ledger = Ledger::default();
        let look = ledger.begin();
        assert_eq!(ledger.take("a"), Some(Seq(1)));
        assert_eq!((ledger.take("a"), ledger.take("b")), (None, Some(Seq(2))));
        ledger.end(look);
        assert_eq!(ledger.resolved(), Seq(0));
        ledger.logged([Seq(1)]);
        assert_eq!((ledger.resolved(), ledger.knows("a")), (Seq(1), true));
        ledger.marked(["a"]);
        assert!(!ledger.knows("a"), "the application may set it to waiting again");
        assert_eq!(ledger.take("a"), Some(Seq(3)));
    }

    #[test]
    fn a_look_that_began_before_a_row_was_marked_does_not_bring_it_back() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.take("a"), Some(Seq(1)));
        ledger.logged([Seq(1)]);
        let (old, other) = (ledger.begin(), ledger.begin());
        ledger.marked(["a"]);
        let later = ledger.begin();
        ledger.end(later);
        ledger.end(other);
        assert!(ledger.knows("a"), "the first look may still show it");
        ledger.end(old);
        assert!(!ledger.knows("a"));
    }

    #[test]
    fn what_was_not_taken_over_is_still_open() {
        let mut ledger = Ledger::default();
        for id in ["a", "b", "c"] {
            ledger.take(id);
        }
        ledger.logged([Seq(2)]);
        let open = |ledger: &Ledger| ledger.open_within(0, u64::MAX).into_iter().map(|(s, _)| s.0).collect::<Vec<_>>();
        assert_eq!(open(&ledger), [1, 3]);
        ledger.vanished(Seq(1));
        assert_eq!((open(&ledger), ledger.knows("a"), ledger.resolved()), (vec![3], false, Seq(2)));
        let before = ledger.begin();
        ledger.begin_anew();
        let after = ledger.begin();
        assert!(ledger.is_stale(before) && !ledger.is_stale(after));
        assert_eq!((ledger.take("x"), ledger.knows("c")), (Some(Seq(4)), false));
    }

    #[test]
    fn a_migration_is_kept_as_text() {
        let migration = Migration { table: "a table".into(), until: Position(7), stage: Stage::Feeding };
        assert_eq!(Migration::decode(&migration.encode()), Some(migration));
        assert_eq!([Migration::decode(""), Migration::decode("feeding x t")], [None, None]);
    }

    #[test]
    fn marks_are_kept_as_text() {
        let mut marks = Marks::default();
        assert_eq!(marks.lowest(["mq"], Position(9)), Position(0));
        marks.set("mq", Position(7));
        marks.set("trail", Position(5));
        assert_eq!(marks.lowest(["mq", "trail"], Position(9)), Position(5));
        assert_eq!(marks.lowest(["mq"], Position(6)), Position(6));
        assert_eq!(Marks::decode(&marks.encode()), marks);
        assert_eq!(Marks::decode("what"), Marks::default());
    }
}
