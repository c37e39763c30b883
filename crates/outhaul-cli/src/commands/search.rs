//! Messages by what they are, and not by their id: what `audit --key` and the like find.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outhaul_core::act::PositionRange;
use outhaul_core::chunk::DestinationNames;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::receipt::LaneState;
use outhaul_core::route::matches;
use outhaul_core::runs::Run;
use outhaul_relay::replay::begin_of;
use outhaul_store::{ParkedQuery, ReadPurpose, ReadRequest, ShardStatus, Store, StoreError, StoredChunk};

use super::locate::{Place, unpacked};

/// What is looked for: everything that is named has to fit.
#[derive(Clone, Debug, Default)]
pub struct Wanted<'a> {
    /// Key.
    pub key: Option<&'a str>,
    /// Topic, with `*`.
    pub topic: Option<&'a str>,
    /// Not before this time, microseconds since 1970-01-01 UTC.
    pub from_us: Option<i64>,
    /// Before this time.
    pub to_us: Option<i64>,
    /// Only what some destination does not have.
    pub unsent: bool,
    /// Most messages.
    pub limit: usize,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Found {
    /// By shard and position; what is still in the table last.
    pub places: Vec<Place>,
    /// Whether there are more.
    pub more: bool,
}

/// Stored content of the log, and content of rows, that is read at once.
const READ_BYTES: usize = 1 << 20;
/// Rows of the table that are read at once.
const READ_ROWS: u32 = 1_000;
/// The log is in the order in which messages were moved. This long behind the last time that is wanted nothing is expected
/// any more: a row that waited longer for its relay is found without `--to`.
const LATE_US: i64 = 24 * 3_600_000_000;

impl Wanted<'_> {
    fn fits(&self, key: Option<&str>, topic: &str, created_at_us: i64) -> bool {
        self.key.is_none_or(|wanted| key == Some(wanted))
            && self.topic.is_none_or(|pattern| matches(pattern, topic))
            && self.from_us.is_none_or(|from| created_at_us >= from)
            && self.to_us.is_none_or(|to| created_at_us < to)
    }

    fn fits_message(&self, m: &Message) -> bool {
        self.fits(m.key.as_deref(), &m.topic, m.created_at_us)
    }

    /// Whether a chunk may hold something.
    fn may_be_in(&self, chunk: &StoredChunk) -> bool {
        let (first, last) = chunk.created_at_us;
        self.from_us.is_none_or(|from| last >= from) && self.to_us.is_none_or(|to| first < to)
    }
}

/// Looks for them, in the order of the log, then in the table.
///
/// # Errors
/// The database's; a chunk that cannot be read is `Corrupt`.
pub async fn search(store: &Arc<dyn Store>, wanted: &Wanted<'_>) -> Result<Found, StoreError> {
    let mut found = Found::default();
    for shard in store.status().await? {
        let parked = if wanted.unsent { parked(store, &shard, wanted, &mut found).await? } else { BTreeSet::new() };
        in_log(store, &shard, wanted, &parked, &mut found).await?;
        if found.more {
            return Ok(found);
        }
    }
    in_table(store, wanted, &mut found).await?;
    Ok(found)
}

/// Whether a lane is through with a message.
fn is_settled(lane: &LaneState, position: Position) -> bool {
    position < lane.cursor || lane.ahead.contains(position.0)
}

async fn in_log(
    store: &Arc<dyn Store>,
    shard: &ShardStatus,
    wanted: &Wanted<'_>,
    parked: &BTreeSet<Position>,
    found: &mut Found,
) -> Result<(), StoreError> {
    let lanes: BTreeMap<&str, &LaneState> =
        shard.lanes.lanes.iter().map(|(lane, _)| (lane.destination.as_str(), lane)).collect();
    let mut from = Position(0);
    if wanted.unsent {
        // A destination that has no lane yet has nothing to wait for in what was moved before.
        from = lanes.values().map(|lane| lane.cursor).min().unwrap_or(shard.log_end);
    } else if let Some(us) = wanted.from_us {
        let first = store.read_log(shard.shard, Position(0), 1).await?.first().map_or(shard.log_end, |c| c.base);
        let range = PositionRange { from: first.min(shard.log_end), to: shard.log_end };
        from = begin_of(store, shard.shard, range, us).await?;
    }
    while from < shard.log_end {
        let chunks = store.read_log(shard.shard, from, READ_BYTES).await?;
        let Some(last) = chunks.last() else { break };
        let next = Position(last.base.0 + u64::from(last.count));
        for stored in &chunks {
            if wanted.to_us.is_some_and(|to| stored.created_at_us.0 > to.saturating_add(LATE_US)) {
                return Ok(());
            }
            if !wanted.may_be_in(stored) {
                continue;
            }
            let (messages, destinations) = unpacked(stored)?;
            let unsent = |m: &Message| {
                m.destinations
                    .iter()
                    .any(|d| lanes.get(destinations.name(d)).is_some_and(|lane| !is_settled(lane, m.position)))
            };
            let fitting = messages.into_iter().filter(|m| m.position >= from && wanted.fits_message(m));
            for m in fitting.filter(|m| !wanted.unsent || (unsent(m) && !parked.contains(&m.position))) {
                let (destinations, moved_at_us) = (destinations.clone(), stored.moved_at_us);
                if !found.add(Place::Logged { message: Box::new(m), destinations, moved_at_us }, wanted) {
                    return Ok(());
                }
            }
        }
        if next <= from {
            break;
        }
        from = next;
    }
    Ok(())
}

/// What is parked, whatever of the log is pruned.
async fn parked(
    store: &Arc<dyn Store>,
    shard: &ShardStatus,
    wanted: &Wanted<'_>,
    found: &mut Found,
) -> Result<BTreeSet<Position>, StoreError> {
    const PAGE: u32 = 1_000;
    let mut positions = BTreeSet::new();
    let mut names: Vec<String> = shard.lanes.lanes.iter().map(|(lane, _)| lane.destination.clone()).collect();
    names.extend(shard.parked.iter().map(|(name, ..)| name.clone()));
    names.sort_unstable();
    names.dedup();
    let mut query =
        ParkedQuery { shard: Some(shard.shard), key: wanted.key.map(str::to_owned), ..ParkedQuery::default() };
    loop {
        let page = store.list_parked(&query, PAGE).await?;
        for listed in &page {
            let (position, destination) = (listed.entry.position, &listed.entry.destination);
            // One that several destinations have is told once, with all of them.
            if !positions.insert(position) {
                continue;
            }
            let place = match of_position(store, shard.shard, position).await? {
                Some(place) => Some(place),
                None => {
                    let read = store.read_parked(shard.shard, destination, &[position], &names).await?;
                    let message = read.into_iter().next().map(|p| Box::new(p.message));
                    message.map(|message| Place::Parked { message, destinations: names.clone() })
                }
            };
            let fits = |place: &Place| match place {
                Place::Logged { message, .. } | Place::Parked { message, .. } => wanted.fits_message(message),
                _ => false,
            };
            if let Some(place) = place.filter(fits)
                && !found.add(place, wanted)
            {
                return Ok(positions);
            }
        }
        let Some(last) = page.last().filter(|_| page.len() >= PAGE as usize) else { return Ok(positions) };
        query.after = Some((last.entry.destination.clone(), shard.shard, last.entry.position));
    }
}

/// A message of the log by its position.
async fn of_position(store: &Arc<dyn Store>, shard: ShardId, position: Position) -> Result<Option<Place>, StoreError> {
    let Some(stored) = store.read_log(shard, position, 1).await?.into_iter().next() else { return Ok(None) };
    let (messages, destinations) = unpacked(&stored)?;
    let message = messages.into_iter().find(|m| m.position == position);
    Ok(message.map(|m| Place::Logged { message: Box::new(m), destinations, moved_at_us: stored.moved_at_us }))
}

async fn in_table(store: &Arc<dyn Store>, wanted: &Wanted<'_>, found: &mut Found) -> Result<(), StoreError> {
    let logged: BTreeSet<String> =
        found.places.iter().filter_map(|place| place.message().map(|m| m.id.clone())).collect();
    let shards: Vec<ShardId> = store.status().await?.iter().map(|s| s.shard).collect();
    let mut first = 0;
    loop {
        let request = ReadRequest {
            purpose: ReadPurpose::Rescan,
            shards: shards.clone(),
            ranges: vec![Run { first, last: u64::MAX }],
            limit: READ_ROWS,
            max_bytes: READ_BYTES,
        };
        let read = store.read(&request).await?;
        let Some(last) = read.rows.last().map(|row| row.seq.0) else { return Ok(()) };
        let fitting = read.rows.into_iter().filter(|r| wanted.fits(r.key.as_deref(), &r.topic, r.created_at_us));
        // A row of a status table waits until it is marked, and may be in the log already.
        for row in fitting.filter(|row| !logged.contains(&row.id)) {
            if !found.add(Place::Hot { row: Box::new(row), due_at_us: None }, wanted) {
                return Ok(());
            }
        }
        if !read.cut || last == u64::MAX {
            return Ok(());
        }
        first = last + 1;
    }
}

impl Found {
    /// False: there was no more room.
    fn add(&mut self, place: Place, wanted: &Wanted<'_>) -> bool {
        self.more = self.places.len() >= wanted.limit;
        if !self.more {
            self.places.push(place);
        }
        !self.more
    }
}
