//! Parked rows as a checkpoint writes them, and as they are read again.

use mysql_async::Row;
use outhaul_core::checkpoint::ShardCheckpoint;
use outhaul_core::chunk;
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::{Defect, Message, Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState};

use super::MySqlStore;
use super::catalogue::Layout;
use super::checkpoint::batched;
use super::statement::Statement;
use super::values::{bytes, hex, number, quoted, text, text_opt};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::parked::folded;
use crate::store::{PARKED_PAGE_ROWS, StoreResult, StoredParked, behind_page};

/// The columns of an entry, in the order in which [`entry`] reads them.
pub(super) const ENTRY: &str = "destination, shard, `position`, msg_key, state, attempts, due_at, error_code, error_text, \
                                first_failed_at, last_failed_at";
/// What the column takes, characters.
const CODE_MAX: usize = 64;
/// The longest error text that is kept, bytes.
const TEXT_MAX: usize = 1 << 16;
/// Positions asked for in one statement.
const POSITIONS_MAX: usize = 1_000;

/// The statements that make all changes of a checkpoint, in few statements: removals, new rows, changed rows, and rows
/// whose payload is too large, which the server copies by itself from the outbox row that is not deleted yet.
pub(super) fn statements<'a>(
    options: &StoreOptions,
    layout: &Layout,
    shards: impl Iterator<Item = &'a ShardCheckpoint>,
    destinations: &[String],
    packet_bytes: usize,
) -> Vec<Statement> {
    let table = quoted(&options.table("outbox_parked"));
    let (mut removed, mut inserted, mut oversize, mut updated) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for ((destination, shard, position), change) in folded(shards) {
        if change.remove {
            removed.push((destination, shard, position));
        }
        match (change.insert, change.entry.as_deref()) {
            (Some(message), Some(entry)) if matches!(message.defect, Some(Defect::TooLarge { .. })) => {
                oversize.push(copied(&table, layout, entry, message, destinations));
            }
            (Some(message), Some(entry)) => {
                let mut row = Statement::new("(");
                row.append(values(entry, message, destinations)).push(", NULL)");
                inserted.push(row);
            }
            (None, Some(entry)) => {
                updated.push(update(&table, entry));
                updated.extend(change.replace.map(|message| replace(&table, entry, message, destinations)));
            }
            _ => {}
        }
    }
    let mut statements = Vec::new();
    for lane in removed.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
        let Some((destination, shard, _)) = lane.first() else { continue };
        // Each row is looked up by itself: a scan would wait for rows that other owners are writing.
        let head = format!(
            "DELETE p FROM {table} p FORCE INDEX (PRIMARY) WHERE p.destination = {} AND p.shard = {shard} AND p.`position` IN (",
            hex(destination.as_bytes())
        );
        let positions = lane.iter().map(|(_, _, position)| Statement::new(position.to_string()));
        statements.extend(batched(&head, ")", positions, packet_bytes));
    }
    let head = format!("INSERT INTO {table} ({ENTRY}, id, codec, message, oversize_payload) VALUES ");
    statements.extend(batched(&head, "", inserted.into_iter(), packet_bytes));
    statements.extend(oversize);
    statements.extend(updated);
    statements
}

/// The values of [`ENTRY`], id, codec and message.
fn values(e: &ParkedEntry, message: &Message, destinations: &[String]) -> Statement {
    let packed = chunk::encode(std::iter::once(message), destinations);
    let mut s = Statement::default();
    s.push_bytes(e.destination.as_bytes()).push(&format!(", {}, {}, ", e.shard, e.position));
    s.push_bytes_opt(e.key.as_deref().map(str::as_bytes)).push(&format!(
        ", '{}', {}, {}, ",
        e.state.as_str(),
        e.attempts,
        e.due_at_us
    ));
    s.push_text(shortened(&e.error_code, CODE_MAX)).push(", ").push_text(shortened(&e.error_text, TEXT_MAX));
    s.push(&format!(", {}, {}, ", e.first_failed_at_us, e.last_failed_at_us));
    s.push_bytes(message.id.as_bytes()).push(&format!(", {}, ", packed.codec)).push_bytes(packed.bytes);
    s
}

/// The longest start of a text with at most so many bytes: the server would refuse more.
fn shortened(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or_default()).unwrap_or_default()
}

fn copied(table: &str, layout: &Layout, entry: &ParkedEntry, message: &Message, destinations: &[String]) -> Statement {
    let shard = layout.shard.as_ref().map_or_else(String::new, |s| format!("{s} = {} AND ", message.shard));
    // As it stands: a function's result may not be larger than a packet. Only what is in another character set has to be
    // converted.
    let payload = if layout.payload_is_foreign {
        format!("CONVERT({} USING utf8mb4)", layout.payload)
    } else {
        layout.payload.clone()
    };
    let mut s = Statement::new(format!("INSERT INTO {table} ({ENTRY}, id, codec, message, oversize_payload) SELECT "));
    s.append(values(entry, message, destinations));
    s.push(&format!(", (SELECT {payload} FROM {} WHERE {shard}{} = {})", layout.table, layout.seq, message.seq));
    s
}

fn update(table: &str, e: &ParkedEntry) -> Statement {
    let mut s =
        Statement::new(format!("UPDATE {table} SET state = '{}', attempts = {}, ", e.state.as_str(), e.attempts));
    s.push(&format!("due_at = {}, ", e.due_at_us));
    if !e.error_code.is_empty() {
        s.push("error_code = ").push_text(shortened(&e.error_code, CODE_MAX));
        s.push(", error_text = ").push_text(shortened(&e.error_text, TEXT_MAX)).push(", ");
    }
    s.push(&format!(
        "first_failed_at = {}, last_failed_at = {} WHERE destination = ",
        e.first_failed_at_us, e.last_failed_at_us
    ));
    s.push_bytes(e.destination.as_bytes()).push(&format!(" AND shard = {} AND `position` = {}", e.shard, e.position));
    s
}

/// Key and content of a row that is updated.
fn replace(table: &str, e: &ParkedEntry, message: &Message, destinations: &[String]) -> Statement {
    let packed = chunk::encode(std::iter::once(message), destinations);
    let mut s = Statement::new(format!("UPDATE {table} SET msg_key = "));
    s.push_bytes_opt(e.key.as_deref().map(str::as_bytes)).push(&format!(", codec = {}, message = ", packed.codec));
    s.push_bytes(packed.bytes).push(", oversize_payload = NULL WHERE destination = ");
    s.push_bytes(e.destination.as_bytes()).push(&format!(" AND shard = {} AND `position` = {}", e.shard, e.position));
    s
}

/// Reads the columns of [`ENTRY`].
pub(super) fn entry(row: &mut Row) -> StoreResult<ParkedEntry> {
    let state = ParkedState::parse(&text(row, 4)?).ok_or_else(|| {
        StoreError::new(StoreErrorKind::Corrupt, "a parked row has a state that this build does not know")
    })?;
    Ok(ParkedEntry {
        destination: text(row, 0)?,
        shard: ShardId(number(row, 1)?),
        position: Position(number(row, 2)?),
        key: text_opt(row, 3)?,
        state,
        attempts: number(row, 5)?,
        due_at_us: number(row, 6)?,
        error_code: text(row, 7)?,
        error_text: text(row, 8)?,
        first_failed_at_us: number(row, 9)?,
        last_failed_at_us: number(row, 10)?,
    })
}

impl MySqlStore {
    /// What the lanes of a shard have parked: page by page along the primary key, one destination after the other.
    pub(super) async fn parked_of_lanes(&self, shard: ShardId) -> StoreResult<Vec<ParkedEntry>> {
        let table = quoted(&self.options.table("outbox_parked"));
        let (mut found, mut destination) = (Vec::new(), String::new());
        loop {
            let next = format!(
                "SELECT destination FROM {table} FORCE INDEX (PRIMARY) WHERE destination > {} ORDER BY destination LIMIT 1",
                hex(destination.as_bytes())
            );
            let Some(mut row) = self.select(&self.log, next).await?.into_iter().next() else { return Ok(found) };
            destination = text(&mut row, 0)?;
            let mut from = (destination != NO_ROUTE).then_some(Position(0));
            while let Some(first) = from {
                let page = self.parked_page(shard, &destination, first).await?;
                from = behind_page(&page);
                found.extend(page);
            }
        }
    }

    pub(super) async fn parked_page(
        &self,
        shard: ShardId,
        destination: &str,
        from: Position,
    ) -> StoreResult<Vec<ParkedEntry>> {
        let sql = format!(
            "SELECT {} FROM {} FORCE INDEX (PRIMARY) WHERE destination = {} AND shard = {shard} \
             AND `position` >= {from} ORDER BY `position` LIMIT {PARKED_PAGE_ROWS}",
            ENTRY.replace("error_text", "''"),
            quoted(&self.options.table("outbox_parked")),
            hex(destination.as_bytes())
        );
        self.select(&self.log, sql).await?.iter_mut().map(entry).collect()
    }

    pub(super) async fn parked_with_content(
        &self,
        shard: ShardId,
        destination: &str,
        positions: &[Position],
        destinations: &[String],
    ) -> StoreResult<Vec<StoredParked>> {
        let mut positions: Vec<Position> = positions.to_vec();
        positions.sort_unstable();
        positions.dedup();
        let table = quoted(&self.options.table("outbox_parked"));
        let mut found = Vec::with_capacity(positions.len());
        for some in positions.chunks(POSITIONS_MAX) {
            let list: Vec<String> = some.iter().map(ToString::to_string).collect();
            let sql = format!(
                "SELECT {ENTRY}, codec, message FROM {table} WHERE destination = {} AND shard = {shard} \
                 AND `position` IN ({}) ORDER BY `position`",
                hex(destination.as_bytes()),
                list.join(", ")
            );
            for mut row in self.select(&self.log, sql).await? {
                found.push(with_content(&mut row, destinations)?);
            }
        }
        Ok(found)
    }

    pub(super) async fn parked_at(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ParkedEntry>> {
        let table = quoted(&self.options.table("outbox_parked"));
        let sql = format!(
            "SELECT {ENTRY} FROM {table} WHERE shard = {shard} AND `position` = {position} ORDER BY destination"
        );
        self.select(&self.other, sql).await?.iter_mut().map(entry).collect()
    }
}

fn with_content(row: &mut Row, destinations: &[String]) -> StoreResult<StoredParked> {
    let codec: u8 = number(row, 11)?;
    let content = bytes(row, 12)?;
    let entry = entry(row)?;
    let corrupt = |why: String| {
        let what = format!("parked message {} of shard {}: {why}", entry.position, entry.shard);
        StoreError::new(StoreErrorKind::Corrupt, what)
    };
    let message = chunk::decode(codec, &content, entry.shard, entry.position, destinations)
        .map_err(|e| corrupt(e.to_string()))?
        .into_iter()
        .next()
        .ok_or_else(|| corrupt("no message in it".into()))?;
    Ok(StoredParked { entry, message })
}
