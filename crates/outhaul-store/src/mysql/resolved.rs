//! Up to which `seq` everything is decided, with no right but SELECT.
//!
//! It rests on this. InnoDB shows rows that are not committed to a READ UNCOMMITTED read. What such a read shows, and a
//! committed read right behind it does not, is held by an open transaction: nothing from the smallest such `seq` on is
//! decided. The table's AUTO_INCREMENT tells the largest number that has been given. A number that was given but is in
//! no row was rolled back or moved, or its row is still on the way into the table. That way is short: the number is
//! taken when the row is about to be inserted, and nothing is waited for in between, unless somebody locks ranges of the
//! table. So a number only counts as given once it has been for [`SETTLING`], by this process's own clock.
//!
//! Where that is not kept (a session that hangs for longer than this between number and row, or another server of a
//! cluster that gives numbers of its own) a row may appear below the answer. It is found by the next rescan; what
//! suffers is its place in the order.
//!
//! A table that was emptied starts its numbers again; then AUTO_INCREMENT has fallen, and the answer with it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::PoisonError;
use std::time::Duration;

use outhaul_core::message::Seq;
use tokio::time::Instant;

use super::MySqlStore;
use super::link::Answer;
use super::statement::Statement;
use super::values::{number, text};
use crate::store::StoreResult;

/// How long a number has to have been given before its row counts as arrived.
const SETTLING: Duration = Duration::from_secs(3);
/// Numbers looked at in one call. What lies above is decided later.
const SEQS_MAX: usize = 100_000;
/// Marks kept in wait are this far apart.
const MARKS_APART: Duration = Duration::from_millis(50);

/// What was found out so far.
#[derive(Debug, Default)]
pub(super) struct Marks {
    resolved: u64,
    /// When which number was the largest given, rising.
    given: VecDeque<(Instant, u64)>,
}

impl Marks {
    /// `given`: the largest number given; `end`: the largest that the look went up to; `open`: the smallest of those
    /// that an open transaction holds.
    fn take(&mut self, now: Instant, given: u64, end: u64, open: Option<u64>) -> u64 {
        if given < self.resolved || self.given.back().is_some_and(|(_, g)| *g > given) {
            *self = Self::default();
        }
        let newest = self.given.back().map_or(self.resolved, |(_, g)| *g);
        if newest < given && self.given.back().is_none_or(|(at, _)| now.duration_since(*at) >= MARKS_APART) {
            self.given.push_back((now, given));
        }
        let mut settled = self.resolved;
        while let Some((_, mark)) = self.given.front().filter(|(at, _)| now.duration_since(*at) >= SETTLING) {
            settled = *mark;
            self.given.pop_front();
        }
        let decided = open.map_or(settled, |open| settled.min(open.saturating_sub(1))).min(end);
        // A mark that was held down by what was open is looked at again.
        if decided < settled {
            self.given.push_front((now.checked_sub(SETTLING).unwrap_or(now), settled));
        }
        self.resolved = self.resolved.max(decided);
        decided
    }
}

impl MySqlStore {
    pub(super) async fn resolved_mark(&self) -> StoreResult<Seq> {
        let layout = self.layout(&self.poll).await?;
        let from = self.marks.lock().unwrap_or_else(PoisonError::into_inner).resolved;
        // SET TRANSACTION without SESSION is for the next statement alone.
        let seqs = format!(
            "SELECT {seq} FROM {table}{hint} WHERE {seq} > {from} ORDER BY {seq} LIMIT {SEQS_MAX}",
            seq = layout.seq,
            table = layout.table,
            hint = layout.by_seq()
        );
        let statements = [
            "SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
            &seqs,
            &seqs,
            &format!("SHOW CREATE TABLE {}", layout.table),
        ];
        let mut held = self.poll.take(&self.dialer).await?;
        let result = held.link.run(&statements.map(Statement::new)).await;
        let [_, dirty, committed, table] = <[Answer; 4]>::try_from(held.give_back(result)?).unwrap_or_default();
        let given = given(table)?;
        let dirty: Vec<u64> = seqs_of(&dirty)?;
        let committed: BTreeSet<u64> = seqs_of(&committed)?.into_iter().collect();
        let end = if dirty.len() < SEQS_MAX { u64::MAX } else { dirty.last().copied().unwrap_or_default() };
        let open = dirty.into_iter().find(|seq| !committed.contains(seq));
        let mut marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Seq(marks.take(Instant::now(), given, end, open)))
    }
}

fn seqs_of(answer: &Answer) -> StoreResult<Vec<u64>> {
    answer.rows.iter().map(|row| number(row, 0)).collect()
}

/// The largest number that the table has given. The server leaves AUTO_INCREMENT out while it is 1.
fn given(answer: Answer) -> StoreResult<u64> {
    let ddl = answer.rows.into_iter().next().map(|mut row| text(&mut row, 1)).transpose()?.unwrap_or_default();
    // One line holds the table's options: `) ENGINE=InnoDB AUTO_INCREMENT=30001 DEFAULT CHARSET=…`.
    let options = ddl.lines().rfind(|line| line.starts_with(')')).unwrap_or_default();
    let next = options.split_whitespace().find_map(|option| option.strip_prefix("AUTO_INCREMENT="));
    Ok(next.and_then(|n| n.parse::<u64>().ok()).map_or(0, |n| n.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock(Instant, Marks);

    impl Clock {
        fn look(&mut self, ms: u64, given: u64, open: Option<u64>) -> u64 {
            self.1.take(self.0 + Duration::from_millis(ms), given, u64::MAX, open)
        }
    }

    #[test]
    fn a_number_counts_once_it_has_settled() {
        let mut c = Clock(Instant::now(), Marks::default());
        assert_eq!(c.look(0, 10, None), 0);
        assert_eq!(c.look(2_900, 20, None), 0);
        assert_eq!(c.look(3_000, 25, None), 10);
        assert_eq!(c.look(5_900, 25, None), 20);
        assert_eq!(c.look(6_000, 25, None), 25);
        assert_eq!(c.look(60_000, 25, None), 25);
        assert_eq!(c.look(60_000, 30, None), 25);
        assert_eq!(c.look(63_000, 30, None), 30);
    }

    #[test]
    fn what_is_open_holds_it_down_for_as_long_as_it_lasts() {
        let mut c = Clock(Instant::now(), Marks::default());
        c.look(0, 10, Some(4));
        assert_eq!(c.look(3_000, 10, Some(4)), 3);
        assert_eq!(c.look(9_000, 20, Some(4)), 3);
        assert_eq!(c.look(9_100, 20, Some(7)), 6);
        assert_eq!(c.look(9_200, 20, None), 10);
        assert_eq!(c.look(12_000, 20, None), 20);
        // The look itself may be cut.
        assert_eq!(c.1.take(c.0 + Duration::from_secs(20), 20, 15, None), 15);
    }

    #[test]
    fn numbers_that_start_again_are_counted_anew() {
        let mut c = Clock(Instant::now(), Marks::default());
        c.look(0, 10, None);
        assert_eq!(c.look(3_000, 10, None), 10);
        assert_eq!(c.look(3_100, 3, None), 0);
        assert_eq!(c.look(6_100, 3, Some(3)), 2);
        // Also when they have not come far enough to be seen by what was resolved alone.
        let mut c = Clock(Instant::now(), Marks::default());
        c.look(0, 10, None);
        assert_eq!(c.look(1_000, 5, None), 0);
        assert_eq!(c.look(3_500, 8, None), 0);
        assert_eq!(c.look(4_000, 8, None), 5);
    }
}
