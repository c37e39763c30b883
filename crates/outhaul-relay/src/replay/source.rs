//! What a replay takes from the log of a shard.

use std::collections::BTreeSet;
use std::sync::Arc;

use outhaul_core::act::{PositionRange, Verb};
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::replay::{Page, Selection};
use outhaul_store::{PARKED_PAGE_ROWS, Store, StoreResult};

use crate::{acts, backlog};

/// Bytes of packed chunks that one read brings at most, or one chunk.
const READ_BYTES: usize = 256 << 10;

/// The messages of a shard's log that a replay delivers.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) store: Arc<dyn Store>,
    pub(super) shard: ShardId,
    pub(super) selection: Selection,
    /// The destinations of the configuration.
    pub(super) names: Arc<[String]>,
    /// The one that is meant.
    pub(super) name: String,
}

impl Source {
    /// The part of the log from a position on that one read brings. At the end of the range its `next` is that end.
    pub(super) async fn page(&self, from: Position) -> StoreResult<Page> {
        let to = self.selection.range().to;
        let chunks = self.store.read_log(self.shard, from, READ_BYTES).await?;
        let mut page = Page { next: from, ..Page::default() };
        let mut messages = Vec::new();
        for chunk in chunks.iter().filter(|c| c.base < to) {
            if self.selection.may_fit(chunk.created_at_us) {
                match backlog::unpacked(std::slice::from_ref(chunk), from, &self.names) {
                    Ok(unpacked) => messages.extend(unpacked),
                    // What lies before it is delivered; the next read begins with it.
                    Err(_) if page.next > from => break,
                    Err(e) => return Err(e),
                }
            }
            page.pruned += chunk.base.0.saturating_sub(page.next.0);
            page.next = Position((chunk.base.0 + u64::from(chunk.count)).min(to.0));
        }
        if chunks.first().is_none_or(|c| c.base >= to) {
            page.pruned = to.0.saturating_sub(from.0);
            page.next = to;
        }
        if messages.is_empty() {
            return Ok(page);
        }
        acts::apply_edits(&mut messages, &self.store.edits(self.shard, &self.name).await?);
        let dropped_below = self.dropped_below(from).await?;
        messages.retain(|m| self.selection.is_meant(m, dropped_below));
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return Ok(page) };
        let range = PositionRange { from: first.position, to: Position(last.position.0 + 1) };
        let parked = self.parked(&self.name, range).await?;
        let unrouted = self.parked(NO_ROUTE, range).await?;
        Selection::set_aside(messages, &parked, &unrouted, &mut page);
        Ok(page)
    }

    /// Below which position the destination was dropped, as far as that lies behind `from` and matters.
    async fn dropped_below(&self, from: Position) -> StoreResult<Position> {
        if !self.selection.fills() {
            return Ok(Position(0));
        }
        let rows = self.store.receipts_of(self.shard, from).await?;
        let drops =
            rows.iter().flat_map(|row| &row.acts).filter(|t| t.verb == Verb::Drop && t.destination == self.name);
        Ok(Position(drops.filter_map(|t| t.positions.last()).max().map_or(0, |last| last + 1)))
    }

    async fn parked(&self, destination: &str, range: PositionRange) -> StoreResult<BTreeSet<Position>> {
        let mut parked = BTreeSet::new();
        let mut from = range.from;
        loop {
            let rows = self.store.parked(self.shard, destination, from).await?;
            let last = rows.last().map(|row| row.position);
            parked.extend(rows.iter().map(|row| row.position).filter(|p| range.contains(*p)));
            match last {
                Some(last) if rows.len() >= PARKED_PAGE_ROWS && last < range.to => from = Position(last.0 + 1),
                _ => return Ok(parked),
            }
        }
    }
}
