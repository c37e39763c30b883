//! What a replay takes from the log of a shard.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::act::{PositionRange, Selector};
use crate::destination::DestinationIndex;
use crate::message::{Message, Position, ShardId};
use crate::receipt::Reason;
use crate::route::Routes;

/// Which messages of a shard's log are meant.
#[derive(Clone, Debug)]
pub struct Selection {
    range: PositionRange,
    selector: Selector,
    destination: DestinationIndex,
    routes: Arc<Routes>,
}

/// A message that was selected and left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Shard.
    pub shard: ShardId,
    /// Position.
    pub position: Position,
    /// Outbox id.
    pub id: String,
    /// Why.
    pub reason: Reason,
}

/// What a read of the log has brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// To be delivered, by rising position.
    pub messages: Vec<Arc<Message>>,
    /// Selected, and not to be delivered.
    pub left: Vec<LeftOut>,
    /// Where the next read begins. At the end of the range: that end.
    pub next: Position,
    /// Positions that the log holds no more.
    pub pruned: u64,
}

impl Selection {
    /// What `selector` names within `range` (its own range is of no account) and the routes lead to a destination.
    pub fn new(range: PositionRange, selector: &Selector, destination: DestinationIndex, routes: Arc<Routes>) -> Self {
        Self { range, selector: Selector { range: None, ..selector.clone() }, destination, routes }
    }

    /// The positions.
    pub const fn range(&self) -> PositionRange {
        self.range
    }

    /// Whether it leaves out what a lane brings.
    pub const fn fills(&self) -> bool {
        self.selector.fill
    }

    /// Whether something of a chunk may be meant, by when the oldest and the newest of its messages were created,
    /// microseconds since 1970-01-01 UTC.
    pub fn may_fit(&self, (first, last): (i64, i64)) -> bool {
        self.selector.created_from_us.is_none_or(|from| from <= last)
            && self.selector.created_before_us.is_none_or(|before| first < before)
    }

    /// Whether a message is meant, as it is for the destination since it was edited.
    ///
    /// What lies below `dropped_below` had been routed to the destination before it was dropped: a lane that has begun since
    /// does not bring it.
    pub fn is_meant(&self, message: &Message, dropped_below: Position) -> bool {
        let of_lane = || message.destinations.contains(self.destination) && message.position >= dropped_below;
        self.range.contains(message.position)
            && self.selector.fits(message)
            && self.routes.destinations(&message.topic).contains(self.destination)
            && !(self.selector.fill && of_lane())
    }

    /// Adds messages that are meant to a page, and tells what is delivered from what is left out: what cannot be read, and
    /// what is parked now, for the destination or without a route.
    pub fn set_aside(
        messages: Vec<Arc<Message>>,
        parked: &BTreeSet<Position>,
        unrouted: &BTreeSet<Position>,
        page: &mut Page,
    ) {
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
            page.left.push(LeftOut {
                shard: message.shard,
                position: message.position,
                id: message.id.clone(),
                reason,
            });
        }
    }
}
