//! Comparing what a destination has with what it acknowledged to a lane: which receipts it is shown, and how far back.
//!
//! Receipts are shown newest first, page by page: those in memory, then the stored ones. Only the newest receipt of a
//! position counts. The destination asks for older ones as long as the oldest of what it was shown is not there. Then it
//! is shown everything that was acknowledged within a margin before, since acknowledgements can come in another order than
//! that in which the destination stored: what it stored before something that is still there is there too, and what was
//! acknowledged longer than a send before that was stored before it.

use std::collections::{HashMap, VecDeque};

use crate::act::Verb;
use crate::lane::{RecentReceipt, Verification};
use crate::message::Position;
use crate::receipt::{LaneReceipt, ReceiptRow};
use crate::runs::Runs;

/// Receipts on the first page; each further one has twice as many, up to the last number.
const PAGE: (usize, usize) = (1_024, 65_536);
/// At most this many receipts are looked at beyond those that were forgotten.
const MOST_RECEIPTS: u64 = 4_000_000;
/// At most this many receipts are shown for the margin's sake.
const MOST_IN_MARGIN: usize = 500_000;
/// So often rows may be merged while they are read.
const MOST_MERGES: u32 = 16;

/// What has to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read stored receipt rows from the newest down: all (None), or those with a number below this one.
    Read(Option<u64>),
    /// Show the destination these, in this order: by rising position.
    Show(Vec<LaneReceipt>),
    /// Nothing.
    Done(Verification),
}

/// A comparison of one lane.
#[derive(Debug)]
pub struct Comparison {
    destination: String,
    unproven_from: Option<Position>,
    max_forgotten: u64,
    margin_us: i64,
    page: usize,
    left: u64,
    found: Verification,
    /// Ids of messages that are in memory.
    ids: HashMap<Position, String>,
    pending: VecDeque<LaneReceipt>,
    seen: Runs,
    /// The lowest row that was read.
    lowest: Option<u64>,
    /// It was read again, and nothing came below it: with no other row in the answer.
    alone: bool,
    merges: u32,
    /// There are no older receipts.
    ended: bool,
    /// Older ones all lie below `unproven_from`.
    below_unproven: bool,
    /// When the oldest of the receipts was acknowledged that were shown last, and of all.
    oldest_us: i64,
    /// Everything acknowledged before this is there. None: not known yet.
    there_before_us: Option<i64>,
    /// Receipts shown since that is known.
    in_margin: usize,
}

impl Comparison {
    /// A comparison. `margin_ms`: longer than a send may take.
    pub fn new(
        destination: String,
        recent: Vec<RecentReceipt>,
        unproven_from: Option<Position>,
        max_forgotten: u64,
        margin_ms: u64,
    ) -> Self {
        let mut comparison = Self {
            destination,
            unproven_from,
            max_forgotten,
            margin_us: i64::try_from(margin_ms.saturating_mul(1_000)).unwrap_or(i64::MAX),
            page: PAGE.0,
            left: MOST_RECEIPTS.saturating_add(max_forgotten),
            found: Verification::default(),
            ids: HashMap::new(),
            pending: VecDeque::new(),
            seen: Runs::new(),
            lowest: None,
            alone: false,
            merges: 0,
            ended: false,
            below_unproven: unproven_from.is_none(),
            oldest_us: i64::MAX,
            there_before_us: None,
            in_margin: 0,
        };
        for RecentReceipt { position, id, receipt } in recent.into_iter().rev() {
            if let Some(id) = id {
                comparison.ids.insert(position, id);
            }
            comparison.push(LaneReceipt { position, receipt });
        }
        comparison
    }

    /// Another number of receipts on the first page.
    pub const fn with_page(mut self, page: usize) -> Self {
        self.page = if page == 0 { 1 } else { page };
        self
    }

    /// The id of a message that is in memory.
    pub fn id(&self, position: Position) -> Option<&str> {
        self.ids.get(&position).map(String::as_str)
    }

    /// What has to be done next.
    pub fn step(&mut self) -> Step {
        loop {
            let compared =
                self.there_before_us.is_some_and(|us| self.oldest_us < us || self.in_margin > MOST_IN_MARGIN);
            if self.left == 0 || (compared && !self.has_unproven()) {
                break;
            }
            if self.pending.len() < self.page && !self.ended {
                // The lowest one is read again: where it is gone, rows below it were merged into another.
                return Step::Read(self.lowest.map(|n| if self.alone { n } else { n.saturating_add(1) }));
            }
            let mut page: Vec<LaneReceipt> = self.pending.drain(..self.pending.len().min(self.page)).collect();
            if page.is_empty() {
                break;
            }
            self.left = self.left.saturating_sub(page.len() as u64);
            self.page = (self.page * 2).min(PAGE.1);
            if let Some(from) = self.unproven_from {
                self.found.unproven.extend(page.iter().filter(|r| r.position >= from).cloned());
            }
            if !compared {
                self.oldest_us =
                    page.iter().map(|r| r.receipt.sent_at_us).min().unwrap_or(i64::MIN).min(self.oldest_us);
                self.in_margin += page.len();
                page.sort_by_key(|r| r.position);
                return Step::Show(page);
            }
        }
        Step::Done(std::mem::take(&mut self.found))
    }

    /// Rows were read.
    pub fn on_rows(&mut self, rows: Vec<(u64, ReceiptRow)>) {
        if let Some(lowest) = self.lowest.filter(|_| !self.alone) {
            if rows.first().is_none_or(|(number, _)| *number != lowest) {
                self.merges += 1;
                self.ended = self.merges > MOST_MERGES;
                self.lowest = None;
                return;
            }
            if rows.len() == 1 {
                self.alone = true; // It may have filled the answer by itself.
                return;
            }
        }
        self.alone = false;
        self.ended = rows.is_empty();
        for (number, row) in rows {
            self.lowest = Some(number);
            // What was skipped since, or was there when it was dropped, is not the destination's any more, whatever it
            // acknowledged of it before.
            let given_up = |verb| matches!(verb, Verb::Skip | Verb::Drop);
            let acts = row.acts.iter().filter(|t| given_up(t.verb) && t.destination == self.destination);
            acts.flat_map(|t| t.positions.iter()).for_each(|run| self.seen.insert_run(run));
            let Some((state, mut receipts)) = row.lanes.into_iter().find(|(s, _)| s.destination == self.destination)
            else {
                // Lanes are carried from row to row: this one is younger than the row.
                self.ended = true;
                return;
            };
            // Stored by position, those of one position in the order of their answers.
            while let Some(receipt) = receipts.pop() {
                self.push(receipt);
            }
            let all_below =
                |from: Position| state.cursor <= from && state.ahead.last().is_none_or(|last| last < from.0);
            self.below_unproven |= self.unproven_from.is_some_and(all_below);
        }
    }

    /// What was shown last was compared: what the destination has forgotten of it, and whether it asks for older ones.
    pub fn on_compared(&mut self, forgotten: &[Position], older: bool) {
        self.found.forgotten.extend_from_slice(forgotten);
        if older || !forgotten.is_empty() {
            self.there_before_us = None;
        }
        if !older && self.there_before_us.is_none() {
            self.there_before_us = Some(self.oldest_us.saturating_sub(self.margin_us));
            self.in_margin = 0;
        }
        if self.found.forgotten.len() as u64 > self.max_forgotten {
            self.left = 0;
        }
    }

    /// The newest receipt of a position is the one that counts.
    fn push(&mut self, receipt: LaneReceipt) {
        if self.seen.insert(receipt.position.0) {
            self.pending.push_back(receipt);
        }
    }

    /// Whether there may be some that are not proven among those to come.
    fn has_unproven(&self) -> bool {
        let pending = || self.pending.iter().any(|r| self.unproven_from.is_some_and(|from| r.position >= from));
        (!self.ended && !self.below_unproven) || pending()
    }
}

#[cfg(test)]
mod tests;
