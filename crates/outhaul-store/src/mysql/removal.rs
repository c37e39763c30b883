//! Which rows a checkpoint deletes, and how.
//!
//! A DELETE must touch no row but those that were read: not one in a gap, and not even to look at it, since a row that an
//! application has open would be waited for. Two ways do that.
//!
//! By range, `seq BETWEEN a AND b ORDER BY seq LIMIT n`, over a run of numbers that were all read: the LIMIT ends the
//! statement before it looks behind the run. That the rows are those that were read, the same transaction asks before:
//! their number, and a checksum over `seq` and `id`. (Nobody but a relay deletes rows, and TRUNCATE is kept out by the
//! lock that the SELECT takes on the table's definition.) By name, a join with a JSON_TABLE of (seq, id), which looks up
//! each row by itself.
//!
//! Measured with 118,402 rows of 300 B in steps of 5,000, READ COMMITTED, full flush, binlog on, two cores; ms for the
//! DELETEs and what they need alone, MariaDB 10.11 / MySQL 8.0.15:
//!
//! | | PK (seq) | 8 shards | 16 shards | 1 shard, every 10th missing | 16 shards, every 10th missing |
//! |---|---|---|---|---|---|
//! | range, one checksum a shard | 303 / 703 | 508 / 1594 | 571 / 1245 | 1087 / 2178 | 5649 / 9536 |
//! | range, one checksum a range | 303 / 703 | 462 / 1217 | 571 / 1287 | | |
//! | JSON_TABLE join | 626 / 1043 | 912 / 1682 | 838 / 1388 | 620 / 1094 | 1117 / 1718 |
//! | range, nothing checked | 219 / 701 | | | | |
//! | range … RETURNING (MariaDB alone) | 322 | | | | |
//! | IN (…), which waits for open neighbours | 373 / 785 | | | | |
//!
//! A join with a derived table of UNION ALL is slower than JSON_TABLE, and overruns MySQL's stack; a DELETE a row takes
//! ten times as long as a range.
//!
//! So runs go by range with one checksum a shard, and what stands in runs of fewer than [`RUN_MIN`] rows goes by name in
//! one statement: a range costs about as much as naming some twenty rows. RETURNING would be as fast, and is not in
//! MySQL.

use outhaul_core::checkpoint::ShardCheckpoint;
use outhaul_core::message::{Message, ShardId};
use outhaul_core::runs::Run;

use super::catalogue::Layout;
use super::statement::Statement;

/// Rows of a shard in a run that are worth a statement of their own.
const RUN_MIN: usize = 16;
/// Ranges in one checksum: the server looks into the index for each when it plans.
const RANGES_PER_SUM: usize = 100;
/// Rows named in one statement.
const NAMED_MAX: usize = 5_000;
/// Rooms of the JSON around a row that is named, bytes.
const NAMED_FIXED: usize = 48;

/// A range to delete: from the first to the last moved row of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    run: Run,
    rows: usize,
    sum: u32,
}

/// What one shard deletes.
#[derive(Debug, Default)]
struct Rows<'a> {
    ranges: Vec<Range>,
    named: Vec<&'a Message>,
}

impl<'a> Rows<'a> {
    /// `one_shard`: numbers in between are this shard's too, so one that is not moved ends a range.
    fn of(shard: &'a ShardCheckpoint, one_shard: bool) -> Self {
        let mut moved: Vec<&Message> = shard.moved.iter().map(AsRef::as_ref).collect();
        moved.sort_unstable_by_key(|m| m.seq);
        let mut runs = shard.runs.iter().peekable();
        let mut groups: Vec<(Vec<&Message>, Option<u64>)> = Vec::new(); // rows, end of their run
        for m in moved {
            let seq = m.seq.0;
            match groups.last_mut() {
                Some((group, Some(end)))
                    if seq <= *end && (!one_shard || group.last().is_some_and(|l| l.seq.0 + 1 == seq)) =>
                {
                    group.push(m);
                }
                _ => {
                    while runs.peek().is_some_and(|run| run.last < seq) {
                        runs.next();
                    }
                    let end = runs.peek().filter(|run| run.first <= seq).map(|run| run.last);
                    groups.push((vec![m], end));
                }
            }
        }
        let mut rows = Self::default();
        for (group, _) in groups {
            match (group.first(), group.last()) {
                (Some(first), Some(last)) if group.len() >= RUN_MIN => rows.ranges.push(Range {
                    run: Run { first: first.seq.0, last: last.seq.0 },
                    rows: group.len(),
                    sum: group.iter().fold(0, |sum, m| sum ^ sum_of(m)),
                }),
                _ => rows.named.extend(group),
            }
        }
        rows
    }

    /// Everything by name.
    fn by_name(shard: &'a ShardCheckpoint) -> Self {
        Self { ranges: Vec::new(), named: shard.moved.iter().map(AsRef::as_ref).collect() }
    }
}

/// The checksum of a row, as [`Layout::sum`] has the server compute it.
fn sum_of(message: &Message) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(message.seq.0.to_string().as_bytes());
    hasher.update(b":");
    hasher.update(message.id.as_bytes());
    hasher.finalize()
}

/// What the answer to a statement has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// Rows and checksum of some of a shard's ranges.
    Sum { part: usize, rows: u64, sum: u64 },
    /// Rows deleted of these parts of the checkpoint.
    Deleted { parts: Vec<usize>, rows: u64 },
}

/// The statements of a checkpoint that delete, each with what it is expected to answer. Parts are numbers of shards in
/// the checkpoint.
#[derive(Debug, Default)]
pub(super) struct Removal {
    pub(super) statements: Vec<Statement>,
    pub(super) expected: Vec<Expected>,
}

impl Removal {
    /// `alone`: this shard's rows are all named, in statements of their own.
    pub(super) fn of(layout: &Layout, parts: &[(usize, &ShardCheckpoint, bool)], packet_bytes: usize) -> Self {
        let mut removal = Self::default();
        let mut together: Vec<(usize, ShardId, &Message)> = Vec::new();
        for (part, shard, alone) in parts {
            let rows = if *alone { Rows::by_name(shard) } else { Rows::of(shard, layout.shard.is_none()) };
            for ranges in rows.ranges.chunks(RANGES_PER_SUM) {
                removal.add_ranges(layout, *part, shard.shard, ranges);
            }
            let named: Vec<_> = rows.named.into_iter().map(|m| (*part, shard.shard, m)).collect();
            if *alone {
                removal.add_named(layout, &named, packet_bytes);
            } else {
                together.extend(named);
            }
        }
        removal.add_named(layout, &together, packet_bytes);
        removal
    }

    fn add_ranges(&mut self, layout: &Layout, part: usize, shard: ShardId, ranges: &[Range]) {
        let rows: usize = ranges.iter().map(|r| r.rows).sum();
        let sum = ranges.iter().fold(0, |sum, r| sum ^ r.sum);
        self.statements.push(Statement::new(layout.sum(shard, ranges)));
        self.expected.push(Expected::Sum { part, rows: rows as u64, sum: sum.into() });
        for range in ranges {
            self.statements.push(Statement::new(layout.delete_range(shard, *range)));
            self.expected.push(Expected::Deleted { parts: vec![part], rows: range.rows as u64 });
        }
    }

    fn add_named(&mut self, layout: &Layout, named: &[(usize, ShardId, &Message)], packet_bytes: usize) {
        let mut rest = named;
        while !rest.is_empty() {
            let mut bytes = 1_024;
            // An id may double when it is escaped, and again as a literal.
            let fits = rest.iter().take(NAMED_MAX).take_while(|(_, _, m)| {
                bytes += NAMED_FIXED + 4 * m.id.len();
                bytes <= packet_bytes
            });
            let (now, later) = rest.split_at(fits.count().max(1));
            let mut parts: Vec<usize> = now.iter().map(|(part, _, _)| *part).collect();
            parts.dedup();
            self.statements.push(layout.delete_named(now));
            self.expected.push(Expected::Deleted { parts, rows: now.len() as u64 });
            rest = later;
        }
    }
}

impl Layout {
    fn sum(&self, shard: ShardId, ranges: &[Range]) -> String {
        let seq = &self.seq;
        let ranges: Vec<String> =
            ranges.iter().map(|r| format!("{seq} BETWEEN {} AND {}", r.run.first, r.run.last)).collect();
        format!(
            "SELECT COUNT(*), BIT_XOR(CRC32(CONCAT({seq}, ':', COALESCE({id}, '')))) FROM {table}{hint} WHERE {of_shard}({ranges})",
            id = self.id.bytes(""),
            table = self.table,
            hint = self.by_row(),
            of_shard = self.of_shard("", shard),
            ranges = ranges.join(" OR "),
        )
    }

    fn of_shard(&self, of: &str, shard: ShardId) -> String {
        self.shard.as_ref().map_or_else(String::new, |name| format!("{of}{name} = {shard} AND "))
    }

    fn delete_range(&self, shard: ShardId, range: Range) -> String {
        let order = self.shard.as_ref().map_or_else(|| self.seq.clone(), |s| format!("{s}, {}", self.seq));
        format!(
            "DELETE FROM {} WHERE {}{} BETWEEN {} AND {} ORDER BY {order} LIMIT {}",
            self.table,
            self.of_shard("", shard),
            self.seq,
            range.run.first,
            range.run.last,
            range.rows
        )
    }

    /// An id that was not UTF-8 is not what it was: it is left out, and its row is found by number alone.
    fn delete_named(&self, rows: &[(usize, ShardId, &Message)]) -> Statement {
        let mut json = String::with_capacity(rows.len() * 64);
        for (n, (_, shard, m)) in rows.iter().enumerate() {
            json.push(if n == 0 { '[' } else { ',' });
            json += &format!("[{},{shard}", m.seq);
            if !m.id.contains('\u{fffd}') {
                json += &format!(",{}", serde_json::Value::from(m.id.as_str()));
            }
            json.push(']');
        }
        json.push(']');
        let mut s = Statement::new("DELETE o FROM JSON_TABLE(");
        s.push_text(json).push(&format!(
            ", '$[*]' COLUMNS (seq BIGINT UNSIGNED PATH '$[0]', shard SMALLINT UNSIGNED PATH '$[1]', \
             id VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[2]')) j STRAIGHT_JOIN {table} o{hint} \
             ON {of_shard}o.{seq} = j.seq AND (j.id IS NULL OR COALESCE({id}, '') = CAST(j.id AS BINARY))",
            table = self.table,
            hint = self.by_row(),
            of_shard = self.shard.as_ref().map_or_else(String::new, |shard| format!("o.{shard} = j.shard AND ")),
            seq = self.seq,
            id = self.id.bytes("o."),
        ));
        s
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outhaul_core::destination::DestinationSet;
    use outhaul_core::message::{Epoch, Position, Row, Seq};
    use outhaul_core::receipt::ReceiptRow;

    use super::*;

    fn shard(seqs: &[u64], runs: &[(u64, u64)]) -> ShardCheckpoint {
        let message = |(n, seq): (usize, &u64)| {
            let row = Row {
                seq: Seq(*seq),
                shard: ShardId(0),
                id: format!("m{seq}"),
                topic: "t".into(),
                key: None,
                headers: None,
                payload: bytes::Bytes::new(),
                created_at_us: 0,
                defect: None,
            };
            Arc::new(Message::from_row(row, Position(n as u64), DestinationSet::EMPTY))
        };
        ShardCheckpoint {
            shard: ShardId(0),
            epoch: Epoch(1),
            number: 0,
            base: Position(0),
            moved: seqs.iter().enumerate().map(message).collect(),
            runs: runs.iter().map(|(first, last)| Run { first: *first, last: *last }).collect(),
            receipts: ReceiptRow::default(),
            parked: vec![],
            acts: vec![],
        }
    }

    fn ranges(seqs: &[u64], runs: &[(u64, u64)], one_shard: bool) -> (Vec<(u64, u64, usize)>, usize) {
        let shard = shard(seqs, runs);
        let rows = Rows::of(&shard, one_shard);
        (rows.ranges.iter().map(|r| (r.run.first, r.run.last, r.rows)).collect(), rows.named.len())
    }

    #[test]
    fn ranges_stay_within_what_was_read() {
        let all: Vec<u64> = (1..=100).collect();
        assert_eq!(ranges(&all, &[(1, 100)], true), (vec![(1, 100, 100)], 0));
        assert_eq!(ranges(&all, &[(1, 50), (51, 100)], true), (vec![(1, 50, 50), (51, 100, 50)], 0));
        assert_eq!(ranges(&all, &[], true), (vec![], 100));
        let but_one: Vec<u64> = (1..=100).filter(|n| *n != 40).collect();
        assert_eq!(ranges(&but_one, &[(1, 39), (41, 100)], true), (vec![(1, 39, 39), (41, 100, 60)], 0));
        // Read, but not moved: with one shard it would be deleted by the range.
        assert_eq!(ranges(&but_one, &[(1, 100)], true), (vec![(1, 39, 39), (41, 100, 60)], 0));
        // With several it is another shard's.
        assert_eq!(ranges(&but_one, &[(1, 100)], false), (vec![(1, 100, 99)], 0));
        let odd: Vec<u64> = (1..=100).step_by(2).collect();
        assert_eq!(ranges(&odd, &[(1, 100)], false), (vec![(1, 99, 50)], 0));
        assert_eq!(ranges(&odd, &[(1, 100)], true), (vec![], 50));
        // Any order of positions.
        assert_eq!(ranges(&all.iter().rev().copied().collect::<Vec<_>>(), &[(1, 100)], true), (vec![(1, 100, 100)], 0));
        assert_eq!(ranges(&[5, 900], &[(1, 10), (900, 900)], true), (vec![], 2));
    }

    #[test]
    fn the_checksum_is_that_of_the_server() {
        // SELECT CRC32('12:m12')
        let shard = shard(&[12], &[]);
        assert_eq!(sum_of(&shard.moved[0]), crc32fast::hash(b"12:m12"));
    }
}
