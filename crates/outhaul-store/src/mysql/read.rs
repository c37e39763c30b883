//! Reading committed rows of the outbox.
//!
//! One statement answers a read, so that all its rows come from one snapshot. It fetches payload and headers of rows in
//! which they are small together, and of the others only the sizes; those that fit into the answer are fetched by a second
//! statement. (Such a row may be gone by then, moved by another owner: it is left out.)

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use mysql_async::Row as Columns;
use outhaul_core::message::{Seq, ShardId};
use outhaul_core::outbox::packet_limits;
use outhaul_core::runs::Run;
use outhaul_core::schedule::{Scheduled, Upcoming};

use super::MySqlStore;
use super::catalogue::Layout;
use super::link::{Link, Slot};
use super::refusal::Failure;
use super::statement::Statement;
use super::values::{NOW, bytes_opt, micros_opt, number};
use crate::row::{ByteBudget, HEADERS_MAX_BYTES, RawRow, RowLimits};
use crate::store::{ReadPurpose, ReadRequest, ReadRows, StoreResult};

/// Payload and headers up to this size together are fetched with their row, whatever the limits of the read, bytes.
const INLINE_MIN: usize = 1 << 10;
/// Ranges in one statement, at most: the server looks into the index for each when it plans.
const RANGES_MAX: usize = 500;
/// Two ranges with a hole of no more numbers than this between them are read as one.
const HOLE: u64 = 8;

/// Limits of sizes, bytes.
#[derive(Clone, Copy)]
struct Sizes {
    row: RowLimits,
    /// Where payload and headers have more than this together, they are fetched by a statement of their own.
    inline: u64,
}

/// A row of a page.
struct Found {
    raw: RawRow,
    /// Its payload and headers are in it, as far as they are fetched at all.
    whole: bool,
}

/// The ranges to ask for: fewer than wanted, with holes in them that hold no more than `extra` numbers in all.
struct Asked {
    ranges: Vec<Run>,
    extra: u64,
}

fn asked(wanted: &[Run]) -> Asked {
    let mut hole = HOLE;
    loop {
        let mut asked = Asked { ranges: Vec::new(), extra: 0 };
        for run in wanted {
            match asked.ranges.last_mut() {
                Some(last) if run.first.saturating_sub(last.last) <= hole + 1 => {
                    asked.extra += run.first.saturating_sub(last.last).saturating_sub(1);
                    last.last = last.last.max(run.last);
                }
                _ => asked.ranges.push(*run),
            }
        }
        if asked.ranges.len() <= RANGES_MAX {
            return asked;
        }
        hole = hole.saturating_mul(4);
    }
}

/// Numbers that a statement names one by one, at most. The core asks for 500.
const POINTS_MAX: u64 = 10_000;

impl Layout {
    /// Whether a row is scheduled: 1 or 0. None: rows cannot be.
    pub(super) fn scheduled(&self) -> Option<String> {
        let at = self.available_at.as_ref()?;
        Some(match &self.created_at {
            Some(created) => format!("({at} IS NOT NULL AND ({created} IS NULL OR {at} > {created}))"),
            None => format!("({at} IS NOT NULL)"),
        })
    }

    /// When a row is due, if it is scheduled; NULL otherwise.
    pub(super) fn due_if_scheduled(&self) -> String {
        match (&self.available_at, self.scheduled()) {
            (Some(at), Some(scheduled)) => format!("IF({scheduled}, {at}, NULL)"),
            _ => "CAST(NULL AS DATETIME(6))".into(),
        }
    }

    /// Makes ordinary rows of scheduled ones that are locked.
    fn make_ordinary(&self, seqs: &[String], shards: &[ShardId]) -> Option<String> {
        let at = self.available_at.as_ref()?;
        // A column may say of itself that every UPDATE changes it.
        let set = self.created_at.as_ref().map_or_else(|| format!("{at} = NULL"), |c| format!("{at} = {c}, {c} = {c}"));
        let of_shards = self.of_shards(shards);
        Some(format!("UPDATE {} SET {set} WHERE {of_shards}{} IN ({})", self.table, self.seq, seqs.join(", ")))
    }

    fn of_shards(&self, shards: &[ShardId]) -> String {
        let Some(shard) = &self.shard else { return String::new() };
        let shards: Vec<String> = shards.iter().map(ToString::to_string).collect();
        format!("{shard} IN ({}) AND ", shards.join(", "))
    }

    /// The scheduled rows that are due soonest.
    fn ahead(&self, ranges: &[Run], shards: &[ShardId], limit: usize) -> Option<String> {
        let (at, scheduled) = (self.available_at.as_ref()?, self.scheduled()?);
        // Everything is looked through as it lies, a part of it by its numbers.
        let hint = if ranges.first().is_some_and(|r| r.first > 0) { self.by_seq() } else { String::new() };
        Some(format!(
            "SELECT {shard}, {seq}, {at}, {NOW} FROM {table}{hint} WHERE {which} AND {scheduled} ORDER BY {at}, {seq} LIMIT {limit}",
            shard = self.shard.as_deref().unwrap_or("0"),
            seq = self.seq,
            table = self.table,
            which = self.which(ranges, shards),
        ))
    }

    fn page(&self, asked: &Asked, shards: &[ShardId], sizes: Sizes, all: bool, limit: u64) -> String {
        let column = |name: &Option<String>| name.clone().unwrap_or_else(|| "NULL".into());
        let (payload, headers) = (&self.payload, column(&self.headers));
        let ordinary = self.scheduled().filter(|_| !all).map(|scheduled| format!(" AND NOT {scheduled}"));
        let is_small = format!("COALESCE(LENGTH({headers}), 0) + COALESCE(LENGTH({payload}), 0) <= {}", sizes.inline);
        format!(
            "SELECT {seq}, {shard}, {id}, {topic}, {key}, IF({is_small}, {headers}, NULL), \
             COALESCE(LENGTH({headers}), 0), IF({is_small}, {payload}, NULL), COALESCE(LENGTH({payload}), 0), {created} FROM {table}{hint} WHERE {which}{ordinary} ORDER BY {seq} LIMIT {limit}",
            seq = self.seq,
            shard = self.shard.as_deref().unwrap_or("0"),
            id = self.id.name,
            topic = self.topic,
            key = column(&self.key),
            created = self.created_at.as_ref().map_or_else(|| NOW.into(), |c| format!("COALESCE({c}, {NOW})")),
            ordinary = ordinary.unwrap_or_default(),
            table = self.table,
            hint = self.by_seq(),
            which = self.which(&asked.ranges, shards),
        )
    }

    /// The same, where rows are to be locked: a range locks for a moment what lies behind it too, maybe a row of another
    /// owner, who would pass over it. A number by itself does not.
    fn which_points(&self, ranges: &[Run], shards: &[ShardId]) -> String {
        let many = ranges.iter().map(|r| r.last.saturating_sub(r.first).saturating_add(1)).fold(0, u64::saturating_add);
        if many > POINTS_MAX {
            return self.which(ranges, shards);
        }
        let points: Vec<String> = ranges.iter().flat_map(|r| r.first..=r.last).map(|seq| seq.to_string()).collect();
        format!("{}{} IN ({})", self.of_shards(shards), self.seq, points.join(", "))
    }

    fn which(&self, ranges: &[Run], shards: &[ShardId]) -> String {
        let seq = &self.seq;
        let ranges: Vec<String> = ranges
            .iter()
            .map(|r| format!("{seq} BETWEEN {} AND {}", r.first.min(i64::MAX as u64), r.last.min(i64::MAX as u64)))
            .collect();
        let ranges = format!("({})", ranges.join(" OR "));
        match &self.shard {
            None => ranges,
            Some(shard) => {
                let shards: Vec<String> = shards.iter().map(ToString::to_string).collect();
                format!("{shard} IN ({}) AND {ranges}", shards.join(", "))
            }
        }
    }

    /// Whether there is anything in a range.
    fn anything(&self, range: Run, shards: &[ShardId]) -> String {
        format!("SELECT 1 FROM {}{} WHERE {} LIMIT 1", self.table, self.by_seq(), self.which(&[range], shards))
    }

    /// Payloads and headers, those alone that are within their limits.
    fn contents(&self, seqs: &[u64], limits: RowLimits) -> String {
        let seqs: Vec<String> = seqs.iter().map(u64::to_string).collect();
        format!(
            "SELECT {seq}, {shard}, {id}, IF(LENGTH({headers}) <= {}, {headers}, NULL), \
             IF(LENGTH({payload}) <= {}, {payload}, NULL) FROM {table}{hint} WHERE {seq} IN ({seqs})",
            limits.headers_bytes,
            limits.message_bytes,
            seq = self.seq,
            shard = self.shard.as_deref().unwrap_or("0"),
            id = self.id.name,
            headers = self.headers.as_deref().unwrap_or("NULL"),
            payload = self.payload,
            table = self.table,
            hint = self.by_seq(),
            seqs = seqs.join(", "),
        )
    }
}

impl MySqlStore {
    pub(super) async fn read_rows(&self, request: &ReadRequest) -> StoreResult<ReadRows> {
        match request.purpose {
            ReadPurpose::Poll => {}
            ReadPurpose::Rescan => return self.read_on(&self.rescan, request, false).await,
            ReadPurpose::Due => {
                self.make_ordinary(request).await?;
                return self.read_on(&self.schedule, request, false).await;
            }
        }
        if let [range] = request.ranges.as_slice()
            && self.idle.load(Ordering::Relaxed)
            && !self.is_anything_there(*range, &request.shards).await?
        {
            return Ok(ReadRows::default());
        }
        let answer = self.read_on(&self.poll, request, false).await;
        let is_empty = answer.as_ref().is_ok_and(|a| a.rows.is_empty() && !a.cut);
        self.idle.store(is_empty, Ordering::Relaxed);
        answer
    }

    /// Rows are locked as they are found, but for those that somebody else holds, and judged by what is committed then.
    async fn make_ordinary(&self, request: &ReadRequest) -> StoreResult<()> {
        let layout = self.layout(&self.schedule).await?;
        let (Some(at), Some(scheduled)) = (&layout.available_at, layout.scheduled()) else { return Ok(()) };
        let find = format!(
            "SELECT {seq} FROM {table}{hint} WHERE {which} AND {scheduled} AND {at} <= {NOW} FOR UPDATE SKIP LOCKED",
            seq = layout.seq,
            table = layout.table,
            hint = layout.by_seq(),
            which = layout.which_points(&request.ranges, &request.shards),
        );
        let mut held = self.schedule.take(&self.dialer).await?;
        let result = async {
            let link = &mut held.link;
            let answers = link.run_inside(&[Statement::new("START TRANSACTION"), Statement::new(find)]).await?;
            let due = answers.last().map_or(&[][..], |a| &a.rows);
            let seqs: Vec<String> =
                due.iter().map(|row| number::<u64>(row, 0).map(|n| n.to_string())).collect::<StoreResult<_>>()?;
            match layout.make_ordinary(&seqs, &request.shards).filter(|_| !seqs.is_empty()) {
                None => link.rollback().await,
                Some(update) => {
                    link.run_inside(&[Statement::new(update)]).await?;
                    link.commit().await
                }
            }
        }
        .await;
        held.give_back(result)
    }

    pub(super) async fn upcoming(&self, shards: &[ShardId], ranges: &[Run], limit: usize) -> StoreResult<Upcoming> {
        let layout = self.layout(&self.schedule).await?;
        if shards.is_empty() || (layout.shard.is_none() && !shards.contains(&ShardId(0))) {
            return Ok(Upcoming::default());
        }
        let Some(sql) = layout.ahead(&asked(ranges).ranges, shards, limit) else { return Ok(Upcoming::default()) };
        let mut upcoming = Upcoming::default();
        let found = self.select(&self.schedule, sql).await?;
        upcoming.cut = found.len() >= limit;
        for row in &found {
            upcoming.now_us = micros_opt(row, 3)?.unwrap_or_default();
            let Some(due_at_us) = micros_opt(row, 2)? else { continue };
            upcoming.rows.push(Scheduled { shard: ShardId(number(row, 0)?), seq: Seq(number(row, 1)?), due_at_us });
        }
        Ok(upcoming)
    }

    /// A small part of the cost of a read, on both sides: what an idle relay asks. Rows that are not due count.
    async fn is_anything_there(&self, range: Run, shards: &[ShardId]) -> StoreResult<bool> {
        let layout = self.layout(&self.poll).await?;
        let sql = layout.anything(range, shards);
        let mut held = self.poll.take(&self.dialer).await?;
        let answer = one(&mut held.link, sql).await;
        Ok(!held.give_back(answer)?.is_empty())
    }

    /// `all`: scheduled rows too.
    pub(super) async fn read_on(&self, slot: &Slot, request: &ReadRequest, all: bool) -> StoreResult<ReadRows> {
        let layout = self.layout(slot).await?;
        if request.shards.is_empty() || (layout.shard.is_none() && !request.shards.contains(&ShardId(0))) {
            return Ok(ReadRows::default());
        }
        let mut held = slot.take(&self.dialer).await?;
        let result = self.answer(&mut held.link, &layout, request, all).await;
        held.give_back(result)
    }

    async fn answer(
        &self,
        link: &mut Link,
        layout: &Layout,
        request: &ReadRequest,
        all: bool,
    ) -> Result<ReadRows, Failure> {
        let limit = u64::from(request.limit.max(1));
        let packet = link.server.packet_bytes as u64;
        let (message_bytes, headers_bytes) = packet_limits(packet);
        let row_limits = RowLimits {
            message_bytes: self.options.max_message_bytes.min(message_bytes),
            headers_bytes: HEADERS_MAX_BYTES.min(headers_bytes),
        };
        let inline = (request.max_bytes / request.limit.max(1) as usize).max(INLINE_MIN) as u64;
        let sizes =
            Sizes { row: row_limits, inline: inline.min(row_limits.message_bytes).min(row_limits.headers_bytes) };
        let asked = asked(&request.ranges);
        let rows_max = limit.saturating_add(asked.extra);
        let found = page(link, layout.page(&asked, &request.shards, sizes, all, rows_max), sizes).await?;
        let mut cut = found.len() as u64 >= rows_max;
        let mut budget = ByteBudget::new(request.max_bytes);
        let mut rows = Vec::with_capacity(found.len().min(limit as usize));
        for f in found.into_iter().filter(|f| wanted(&request.ranges, f.raw.seq)) {
            let fetched = row_limits.fetched(f.raw.payload_bytes, f.raw.headers_bytes);
            if rows.len() as u64 >= limit || !budget.takes(fetched) {
                cut = true;
                break;
            }
            rows.push(f);
        }
        let missing: Vec<u64> = rows.iter().filter(|f| !f.whole).map(|f| f.raw.seq).collect();
        let mut contents = HashMap::new();
        if !missing.is_empty() {
            for mut row in one(link, layout.contents(&missing, row_limits)).await? {
                let id = (number::<u64>(&row, 0)?, number::<u16>(&row, 1)?, bytes_opt(&mut row, 2)?);
                contents.insert(id, (bytes_opt(&mut row, 3)?, bytes_opt(&mut row, 4)?.unwrap_or_default()));
            }
        }
        let rows = rows.into_iter().filter_map(|mut f| {
            if !f.whole {
                let id = (f.raw.seq, f.raw.shard, f.raw.id.take());
                let (headers, payload) = contents.remove(&id)?;
                (f.raw.headers, f.raw.payload) = (headers, payload.into());
                f.raw.id = id.2;
            }
            Some(f.raw.into_row(row_limits))
        });
        Ok(ReadRows { rows: rows.collect(), cut })
    }
}

fn wanted(ranges: &[Run], seq: u64) -> bool {
    let at = ranges.partition_point(|r| r.last < seq);
    ranges.get(at).is_some_and(|r| r.first <= seq)
}

async fn one(link: &mut Link, sql: String) -> Result<Vec<Columns>, Failure> {
    Ok(link.run(&[Statement::new(sql)]).await?.into_iter().next().unwrap_or_default().rows)
}

async fn page(link: &mut Link, sql: String, sizes: Sizes) -> Result<Vec<Found>, Failure> {
    let rows = one(link, sql).await?;
    let mut page = Vec::with_capacity(rows.len());
    for row in rows {
        page.push(found(row, sizes)?);
    }
    Ok(page)
}

fn found(mut row: Columns, sizes: Sizes) -> StoreResult<Found> {
    let (headers_bytes, payload_bytes): (u64, u64) = (number(&row, 6)?, number(&row, 8)?);
    let raw = RawRow {
        seq: number(&row, 0)?,
        shard: number(&row, 1)?,
        id: bytes_opt(&mut row, 2)?,
        topic: bytes_opt(&mut row, 3)?,
        key: bytes_opt(&mut row, 4)?,
        headers: bytes_opt(&mut row, 5)?,
        headers_bytes,
        payload: bytes_opt(&mut row, 7)?.unwrap_or_default().into(),
        payload_bytes,
        created_at_us: micros_opt(&row, 9)?.unwrap_or_default(),
    };
    Ok(Found {
        raw,
        whole: headers_bytes.saturating_add(payload_bytes) <= sizes.inline
            || sizes.row.fetched(payload_bytes, headers_bytes) == 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, last: u64) -> Run {
        Run { first, last }
    }

    #[test]
    fn near_ranges_are_asked_for_as_one() {
        let a = asked(&[run(1, 3), run(5, 5), run(100, 200), run(209, u64::MAX)]);
        assert_eq!((a.ranges, a.extra), (vec![run(1, 5), run(100, u64::MAX)], 9));
        let many: Vec<Run> = (0..10_000).map(|n| run(n * 100, n * 100 + 1)).collect();
        let a = asked(&many);
        assert!(a.ranges.len() <= RANGES_MAX);
        let covered: u64 = a.ranges.iter().map(|r| r.last - r.first + 1).sum();
        assert_eq!(covered, 20_000 + a.extra);
    }

    #[test]
    fn only_what_lies_in_a_range_is_wanted() {
        let ranges = [run(3, 5), run(9, 9)];
        assert_eq!((0..12).filter(|n| wanted(&ranges, *n)).collect::<Vec<_>>(), [3, 4, 5, 9]);
    }
}
