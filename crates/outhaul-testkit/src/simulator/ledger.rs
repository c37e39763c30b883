//! What the applications wrote and what the destinations hold: the truth that a run is judged by.

use std::collections::BTreeMap;
use std::sync::Arc;

use outhaul_core::config::DestinationConfig;
use outhaul_core::destination::{DestinationIndex, DestinationSet};
use outhaul_core::message::{Message, Row};
use outhaul_core::route::{Route, Routes};

use super::replay::is_copy;

/// The number of a message: applications write it as the id `m<number>`.
pub(super) type MessageNumber = usize;

/// What became of the transaction that wrote a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Written {
    Open,
    Committed,
    RolledBack,
    /// It was committed, and the database lost it: TRUNCATE, or a backup that does not have it.
    Lost,
    /// It was taken back before it was due.
    Cancelled,
}

/// A message at one destination.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AtDestination {
    /// How many times it was stored.
    pub(super) stored: u32,
    /// Copies that it has lost again.
    pub(super) forgotten: u32,
    /// It was refused for good, or can not be sent as it is.
    pub(super) refused: bool,
    /// Sends that were answered with a failure that counts, or may.
    pub(super) failures: u32,
    /// When it was sent last.
    pub(super) sent_at: u64,
    /// When the newest redrive was ordered that has changed it.
    pub(super) redriven_at: u64,
    /// An operator has skipped it.
    pub(super) skipped: bool,
    /// It has another key here.
    pub(super) rekeyed: bool,
    /// No route named the destination when it came.
    pub(super) rerouted: bool,
}

/// A message as its application wrote it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) row: Row,
    pub(super) key: Option<usize>,
    /// When it is to be delivered, if that is later.
    pub(super) due: Option<u64>,
    pub(super) written: Written,
    /// When it was committed.
    pub(super) committed_at: u64,
    /// By the routes; from its checkpoint on, those that its mover knew.
    pub(super) destinations: DestinationSet,
    /// Never taken by this destination.
    pub(super) rejected_by: Option<DestinationIndex>,
    /// Never taken by this destination, which always asks for another try.
    pub(super) stubborn_at: Option<DestinationIndex>,
    pub(super) at: Vec<AtDestination>,
    /// What it is since it was edited, by destination.
    pub(super) edited: BTreeMap<usize, Message>,
    /// It was skipped while no route named a destination for it.
    pub(super) skipped_unrouted: bool,
}

/// The truth.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) entries: Vec<Entry>,
    /// Messages of each key, in the order in which they were committed.
    by_key: Vec<Vec<MessageNumber>>,
    /// From this message on, order is not promised: the sequence has started again while the relay ran.
    pub(super) order_ends_at: MessageNumber,
    /// Where the order of due times is exact: so long before it is due a message must have been committed, microseconds.
    pub(super) due_order_seen_within: Option<u64>,
    /// Up to where each key's messages are dealt with at each destination.
    dealt_with: Vec<Vec<usize>>,
    destinations: Arc<[DestinationConfig]>,
    routes: Routes,
}

/// The number of a message from its id.
pub(super) fn number_of(id: &str) -> Option<MessageNumber> {
    id.strip_prefix('m')?.parse().ok()
}

impl Ledger {
    pub(super) fn new(keys: usize, destinations: Arc<[DestinationConfig]>, routes: Vec<Route>) -> Self {
        Self {
            entries: Vec::new(),
            order_ends_at: MessageNumber::MAX,
            due_order_seen_within: None,
            by_key: vec![Vec::new(); keys],
            dealt_with: vec![vec![0; destinations.len()]; keys],
            destinations,
            routes: Routes::new(routes),
        }
    }

    /// The number that the next message gets.
    pub(super) const fn next_number(&self) -> MessageNumber {
        self.entries.len()
    }

    pub(super) fn insert(
        &mut self,
        row: Row,
        key: Option<usize>,
        due: Option<u64>,
        rejected_by: Option<DestinationIndex>,
        stubborn_at: Option<DestinationIndex>,
    ) {
        let destinations = self.routes.destinations(&row.topic);
        let defect = Message::from_row(row.clone(), Default::default(), destinations).defect.is_some();
        let at = AtDestination { refused: defect, ..AtDestination::default() };
        let at = vec![at; self.destinations.len()];
        self.entries.push(Entry {
            row,
            key,
            due,
            written: Written::Open,
            committed_at: 0,
            destinations,
            rejected_by,
            stubborn_at,
            at,
            edited: BTreeMap::new(),
            skipped_unrouted: false,
        });
    }

    pub(super) fn committed(&mut self, numbers: &[MessageNumber], now: u64) {
        for n in numbers {
            let entry = &mut self.entries[*n];
            entry.written = Written::Committed;
            entry.committed_at = now;
            if let Some(key) = entry.key.filter(|_| entry.due.is_none()) {
                self.by_key[key].push(*n);
            }
        }
    }

    pub(super) fn ended_as(&mut self, numbers: &[MessageNumber], written: Written) {
        for n in numbers {
            self.entries[*n].written = written;
        }
    }

    pub(super) fn blocks_key(&self, destination: DestinationIndex) -> bool {
        self.destinations[usize::from(destination.0)].limits.block_key
    }

    fn max_attempts(&self, destination: DestinationIndex) -> u32 {
        self.destinations[usize::from(destination.0)].limits.max_attempts
    }

    /// Whether a destination may have given a message up: refused, or tried as often as its policy allows.
    pub(super) fn may_be_dead(&self, number: MessageNumber, destination: DestinationIndex) -> bool {
        let at = &self.entries[number].at[usize::from(destination.0)];
        at.refused || at.failures >= self.max_attempts(destination)
    }

    /// Whether it was redriven and has not been sent since, though it could be.
    pub(super) fn is_untried(&self, number: MessageNumber, d: usize) -> bool {
        let entry = &self.entries[number];
        let edited = entry.edited.contains_key(&d);
        let sendable =
            edited || Message::from_row(entry.row.clone(), Default::default(), entry.destinations).defect.is_none();
        sendable && entry.at[d].sent_at < entry.at[d].redriven_at
    }

    /// A message is about to be sent: it must be one that was committed, as it was written, and routed there.
    pub(super) fn check_sent(
        &self,
        message: &Message,
        destination: DestinationIndex,
        now: u64,
    ) -> Result<MessageNumber, String> {
        let number = number_of(&message.id).filter(|n| *n < self.entries.len());
        let Some(number) = number else { return Err(format!("a message that nobody wrote is sent: {}", message.id)) };
        let entry = &self.entries[number];
        if entry.due.is_some_and(|due| now < due) {
            return Err(format!("{} is sent before it is due", message.id));
        }
        if entry.written == Written::Cancelled {
            return Err(format!("{} is sent after it was cancelled", message.id));
        }
        if matches!(entry.written, Written::Open | Written::RolledBack) {
            return Err(format!("{} is sent, but its transaction is {:?}", message.id, entry.written));
        }
        let row = &entry.row;
        let edited = entry.edited.get(&usize::from(destination.0));
        let (key, headers, payload) =
            edited.map_or((&row.key, &row.headers, &row.payload), |m| (&m.key, &m.headers, &m.payload));
        let same = row.topic == message.topic
            && *key == message.key
            && *payload == message.payload
            && *headers == message.headers
            && row.shard == message.shard;
        if entry.at[usize::from(destination.0)].skipped {
            return Err(format!("{} is sent to destination {destination} after it was skipped", message.id));
        }
        if !same || message.defect.is_some() || !entry.destinations.contains(destination) {
            return Err(format!("{} is sent to destination {destination} other than it was written", message.id));
        }
        Ok(number)
    }

    /// A destination stores a message: for a consumer that knows what it has seen, the order of its key must hold.
    pub(super) fn stored(&mut self, number: MessageNumber, destination: DestinationIndex) -> Result<(), String> {
        let d = usize::from(destination.0);
        self.entries[number].at[d].stored += 1;
        if self.entries[number].at[d].stored > 1 {
            return Ok(());
        }
        let Some(key) = self.entries[number].key.filter(|_| number < self.order_ends_at) else { return Ok(()) };
        let at = &self.entries[number].at[d];
        if at.rekeyed || at.rerouted || at.skipped {
            return Ok(()); // It comes when an operator says so, by another key, or late, after it was given up.
        }
        if !self.entries[number].destinations.contains(destination) {
            return Ok(()); // It was sent ahead, and then moved by one that did not know the destination.
        }
        let settled = |before: &MessageNumber| {
            let entry = &self.entries[*before];
            entry.at[d].stored > 0
                || entry.at[d].skipped
                || entry.at[d].rekeyed
                || entry.at[d].rerouted
                || !entry.destinations.contains(destination)
                || entry.written == Written::Lost
                || (!self.blocks_key(destination) && self.may_be_dead(*before, destination))
        };
        if let Some(due) = self.entries[number].due {
            // All that had been committed when it was due must be there.
            let late = |n: &&MessageNumber| self.entries[**n].committed_at < due && !settled(n);
            return match self.by_key[key].iter().find(late) {
                None => self.check_due_order(number, key, &settled),
                Some(before) => Err(format!(
                    "order of key k{key} at destination {destination}: m{number} was due after m{before}, and is stored before"
                )),
            };
        }
        let (from, place) = (self.dealt_with[key][d], self.by_key[key].iter().position(|n| *n == number));
        let Some(place) = place else { return Err(format!("m{number} is stored, and is not committed")) };
        if place < from {
            // One that was given up lets later ones go on at once. If the process is killed before that is stored, it is
            // tried again, and comes after them: the policy has given up order around it.
            let revived = !self.blocks_key(destination) && self.may_be_dead(number, destination);
            let what =
                format!("order of key k{key} at destination {destination}: m{number} is stored after later ones");
            return if revived { Ok(()) } else { Err(what) };
        }
        // All that was committed before it must be there, or be given up where later ones may go on.
        if let Some(before) = self.by_key[key][from..place].iter().find(|n| !settled(n)) {
            return Err(format!(
                "order of key k{key} at destination {destination}: m{number} is stored before m{before}"
            ));
        }
        self.dealt_with[key][d] = place;
        Ok(())
    }

    /// Of messages of a key that are to be delivered later, those that are due earlier go first.
    fn check_due_order(
        &self,
        number: MessageNumber,
        key: usize,
        settled: &impl Fn(&MessageNumber) -> bool,
    ) -> Result<(), String> {
        let Some(seen_within) = self.due_order_seen_within else { return Ok(()) };
        let place = |n: MessageNumber| (self.entries[n].due, self.entries[n].row.seq);
        let earlier = |n: &MessageNumber| {
            let e = &self.entries[*n];
            e.key == Some(key)
                && e.written == Written::Committed
                && e.due.is_some_and(|due| e.committed_at + seen_within < due)
                && place(*n) < place(number)
        };
        match (0..self.entries.len()).find(|n| earlier(n) && !settled(n)) {
            None => Ok(()),
            Some(before) => Err(format!("order of key k{key}: m{number} goes before m{before}, which was due earlier")),
        }
    }

    /// A destination has lost a copy: what comes again of its key begins with it.
    pub(super) fn forgotten(&mut self, number: MessageNumber, d: usize) {
        let at = &mut self.entries[number].at[d];
        at.stored -= 1;
        at.forgotten += 1;
        if at.stored == 0
            && let Some(key) = self.entries[number].key
            && let Some(place) = self.by_key[key].iter().position(|n| *n == number)
        {
            self.dealt_with[key][d] = self.dealt_with[key][d].min(place);
        }
    }

    /// A consumer that drops copies must see each key's messages in the order in which they were committed.
    pub(super) fn check_order(&self, held: &[MessageNumber], destination: DestinationIndex) -> Result<(), String> {
        if self.order_ends_at < self.entries.len() || !self.blocks_key(destination) {
            return Ok(());
        }
        let mut seen = vec![false; self.entries.len()];
        let mut newest: Vec<Option<usize>> = vec![None; self.by_key.len()];
        for number in held.iter().filter(|n| !is_copy(**n)) {
            if std::mem::replace(&mut seen[*number], true) {
                continue;
            }
            let Some(key) = self.entries[*number].key.filter(|_| self.entries[*number].due.is_none()) else { continue };
            let at = &self.entries[*number].at[usize::from(destination.0)];
            if at.rekeyed || at.rerouted || at.skipped {
                continue;
            }
            if !self.entries[*number].destinations.contains(destination) {
                continue;
            }
            let place = self.by_key[key].iter().position(|n| n == number);
            if place < newest[key] {
                return Err(format!("order of key k{key} at destination {destination}: in the end m{number} is late"));
            }
            newest[key] = place;
        }
        Ok(())
    }

    /// How many messages were stored more than once, and the first of them.
    pub(super) fn duplicates(&self) -> (u64, Option<String>) {
        let mut found = self.entries.iter().enumerate().flat_map(|(n, e)| {
            e.at.iter().enumerate().filter(|(_, at)| at.stored > 1).map(move |(d, at)| (n, d, at.stored))
        });
        let first = found.next();
        let more = found.count() as u64;
        (more + u64::from(first.is_some()), first.map(|(n, d, times)| format!("m{n} {times} times at destination {d}")))
    }
}
