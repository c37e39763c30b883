//! What a replay takes from the log of a shard.

use std::collections::BTreeSet;
use std::sync::Arc;

use outhaul_core::act::{PositionRange, Selector};
use outhaul_core::destination::{DestinationIndex, NO_ROUTE};
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::receipt::Reason;
use outhaul_core::route::Routes;
use outhaul_store::{PARKED_PAGE_ROWS, Store, StoreResult, StoredChunk};

use super::LeftOut;
use crate::{acts, backlog};

/// Bytes of packed chunks that one read brings at most, or one chunk.
const READ_BYTES: usize = 256 << 10;

/// The messages of a shard's log that a replay delivers.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) store: Arc<dyn Store>,
    pub(super) shard: ShardId,
    pub(super) range: PositionRange,
    /// Its own range is of no account.
    pub(super) selector: Selector,
    /// The destinations of the configuration, and which of them it is.
    pub(super) names: Arc<[String]>,
    pub(super) destination: DestinationIndex,
    pub(super) routes: Arc<Routes>,
}

/// What a read of the log has brought.
#[derive(Debug, Default)]
pub(super) struct Page {
    /// To be delivered, by rising position.
    pub(super) messages: Vec<Arc<Message>>,
    /// Selected, and not to be delivered.
    pub(super) left: Vec<LeftOut>,
    /// Where the next read begins.
    pub(super) next: Position,
    /// Positions that the log holds no more.
    pub(super) pruned: u64,
}

impl Source {
    fn name(&self) -> &str {
        self.names.get(usize::from(self.destination.0)).map_or("", String::as_str)
    }

    /// The part of the log from a position on that one read brings. At the end of the range its `next` is that end.
    pub(super) async fn page(&self, from: Position) -> StoreResult<Page> {
        let chunks = self.store.read_log(self.shard, from, READ_BYTES).await?;
        let mut page = Page { next: from, ..Page::default() };
        let mut messages = Vec::new();
        for chunk in chunks.iter().filter(|c| c.base < self.range.to) {
            if self.may_fit(chunk) {
                match backlog::unpacked(std::slice::from_ref(chunk), from, &self.names) {
                    Ok(unpacked) => messages.extend(unpacked),
                    // What lies before it is delivered; the next read begins with it.
                    Err(_) if page.next > from => break,
                    Err(e) => return Err(e),
                }
            }
            page.pruned += chunk.base.0.saturating_sub(page.next.0);
            page.next = Position((chunk.base.0 + u64::from(chunk.count)).min(self.range.to.0));
        }
        if chunks.first().is_none_or(|c| c.base >= self.range.to) {
            page.pruned = self.range.to.0.saturating_sub(from.0);
            page.next = self.range.to;
        }
        if messages.is_empty() {
            return Ok(page);
        }
        acts::apply_edits(&mut messages, &self.store.edits(self.shard, self.name()).await?);
        messages.retain(|m| self.is_meant(m));
        self.set_aside(messages, &mut page).await?;
        Ok(page)
    }

    fn may_fit(&self, chunk: &StoredChunk) -> bool {
        let (first, last) = chunk.created_at_us;
        self.selector.created_from_us.is_none_or(|from| from <= last)
            && self.selector.created_before_us.is_none_or(|before| first < before)
    }

    fn is_meant(&self, message: &Message) -> bool {
        self.range.contains(message.position)
            && self.selector.fits(message)
            && self.routes.destinations(&message.topic).contains(self.destination)
            && !(self.selector.fill && message.destinations.contains(self.destination))
    }

    /// Tells what is delivered from what is left out: what cannot be read, and what is parked, now.
    async fn set_aside(&self, messages: Vec<Arc<Message>>, page: &mut Page) -> StoreResult<()> {
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return Ok(()) };
        let range = PositionRange { from: first.position, to: Position(last.position.0 + 1) };
        let parked = self.parked(self.name(), range).await?;
        let unrouted = self.parked(NO_ROUTE, range).await?;
        for message in messages {
            let reason = if parked.contains(&message.position) {
                Reason::new("OUT-4030", "it is parked: the relay delivers it, or a redrive does")
            } else if unrouted.contains(&message.position) {
                Reason::new("OUT-4030", "it is parked under -: a redrive delivers it to where the routes lead now")
            } else if let Some(defect) = &message.defect {
                Reason::new("OUT-4002", defect.to_string())
            } else {
                page.messages.push(message);
                continue;
            };
            page.left.push(LeftOut { shard: self.shard, position: message.position, id: message.id.clone(), reason });
        }
        Ok(())
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
