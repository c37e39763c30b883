//! Acts of one shard: which are open, how far each has got, and what is paused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::Pipeline;
use crate::act::{Act, ActNumber, ActState, ActWrite, FoundParked, Original, PauseWrite, Selector, Touched, Verb};
use crate::config::{Config, Jitter, Now};
use crate::destination::{DestinationIndex, NO_ROUTE};
use crate::faults::{Fault, Faults};
use crate::instance::Event;
use crate::lane::Changed;
use crate::message::{Message, Position};
use crate::parked::ParkedWrite;
use crate::runs::{Run, Runs};

/// Acts of a shard that are carried out at one time; others wait.
const MOST_WALKS: usize = 64;
/// Parked rows that are asked for at one time: without content, and with it.
const PAGE: (usize, usize) = (500, 50);
/// Messages that acts change for one checkpoint.
const MOST_PENDING: usize = 1_000;
/// What a limit to the rate holds back may be made up for within this long, and is looked after so often, microseconds.
const BURST_US: u64 = 50_000;

/// An act that is being carried out: it walks along the parked rows that it selects, by rising position.
#[derive(Debug)]
struct Walk {
    act: Act,
    destination: String,
    selector: Selector,
    page: VecDeque<FoundParked>,
    reading: bool,
    /// Edits that the lane had stored when the page was asked for: after another one the page is read anew.
    edits_before: u64,
    /// An older edit of the same message comes first.
    waits: bool,
    /// Nothing lies behind the page.
    ended: bool,
    failures: u32,
    read_at_us: u64,
    /// When the next message may be changed.
    next_at_us: u64,
    note: String,
}

/// A look for the parked rows that an act selects.
#[derive(Debug)]
pub(crate) struct Find {
    pub(crate) act: ActNumber,
    pub(crate) destination: String,
    pub(crate) selector: Selector,
    pub(crate) from: Position,
    pub(crate) limit: usize,
    pub(crate) content: bool,
}

/// What a checkpoint took of a shard's acts.
#[derive(Debug, Default)]
pub(crate) struct ActsShare {
    pub(crate) writes: Vec<ActWrite>,
    pub(crate) touched: Vec<Touched>,
}

/// The acts of a shard.
#[derive(Debug, Default)]
pub(crate) struct Acts {
    walks: BTreeMap<ActNumber, Walk>,
    /// Acts that are over, and whether that is stored: a look that began before may show them as open.
    over: BTreeMap<ActNumber, bool>,
    writes: BTreeMap<ActNumber, ActWrite>,
    touched: BTreeMap<ActNumber, Touched>,
    changed_at_us: Option<u64>,
    /// Messages changed since the last checkpoint.
    pending: usize,
    /// Rows that no lane has, and that were removed: pages that were read before may show them.
    gone: BTreeMap<String, Runs>,
    /// Paused destinations; None: the whole shard.
    paused: BTreeSet<Option<String>>,
}

impl Acts {
    pub(crate) fn new(paused: &[Option<String>], config: &Config) -> Self {
        let known = !config.faults.has(Fault::PauseNotRecovered);
        Self { paused: paused.iter().filter(|_| known).cloned().collect(), ..Self::default() }
    }

    pub(crate) const fn changed_at_us(&self) -> Option<u64> {
        self.changed_at_us
    }

    /// A look for open acts begins: what is stored as over by now is not shown by it.
    pub(crate) fn look_begins(&mut self) {
        self.over.retain(|_, stored| !*stored);
    }

    pub(crate) fn share(&mut self) -> ActsShare {
        (self.changed_at_us, self.pending) = (None, 0);
        let writes = std::mem::take(&mut self.writes).into_values().collect();
        ActsShare { writes, touched: std::mem::take(&mut self.touched).into_values().collect() }
    }

    pub(crate) fn stored(&mut self, share: &ActsShare) {
        for write in share.writes.iter().filter(|w| w.state != ActState::Open) {
            self.over.insert(write.number, true);
        }
    }

    pub(crate) fn give_back(&mut self, share: ActsShare, now: Now) {
        for older in share.writes {
            match self.writes.get_mut(&older.number) {
                Some(newer) => newer.original = newer.original.take().or(older.original),
                None => drop(self.writes.insert(older.number, older)),
            }
        }
        for older in share.touched {
            self.pending += usize::try_from(older.positions.len()).unwrap_or(usize::MAX);
            match self.touched.get_mut(&older.number) {
                Some(newer) => older.positions.iter().for_each(|run| newer.positions.insert_run(run)),
                None => drop(self.touched.insert(older.number, older)),
            }
        }
        self.changed_at_us.get_or_insert(now.mono_us);
    }

    fn note(&mut self, act: &Act, state: ActState, note: &str, now: Now) -> &mut ActWrite {
        self.changed_at_us.get_or_insert(now.mono_us);
        let number = act.number;
        let write = self.writes.entry(number).or_insert_with(|| ActWrite {
            number,
            state,
            next: act.next,
            done: 0,
            left: 0,
            note: String::new(),
            original: None,
            pause: None,
        });
        (write.state, write.next, write.done, write.left) = (state, act.next, act.done, act.left);
        note.clone_into(&mut write.note);
        if state != ActState::Open {
            self.over.insert(number, false);
        }
        write
    }

    fn touch(&mut self, act: &Act, destination: &str, positions: Run) {
        let (number, verb) = (act.number, act.verb);
        let new = || Touched { number, verb, destination: destination.to_owned(), positions: Runs::new() };
        self.touched.entry(number).or_insert_with(new).positions.insert_run(positions);
        self.pending += 1;
    }
}

impl Pipeline {
    /// An act is open: it is begun, unless it is under way or over already.
    pub(crate) fn take_act(&mut self, act: Act, faults: Faults, now: Now, events: &mut Vec<Event>) {
        if self.acts.walks.contains_key(&act.number) || self.acts.over.contains_key(&act.number) {
            return;
        }
        match (act.verb, &act.destination, &act.selector) {
            (Verb::Replay, _, _) => {} // It is its command's.
            (Verb::Pause | Verb::Resume, _, _) => self.pause(&act, now, events),
            (_, Some(destination), Some(selector)) => match self.obstacle(&act, destination, faults) {
                Some(why) => self.refuse(&act, &why, now, events),
                None if self.acts.walks.len() < MOST_WALKS => {
                    let (destination, selector) = (destination.clone(), selector.clone());
                    self.acts.walks.insert(act.number, Walk::new(act, destination, selector, now));
                }
                None => {} // It is seen again.
            },
            _ => self.refuse(&act, "this version of the relay cannot read what it is about", now, events),
        }
    }

    /// Why an act cannot be carried out at all.
    fn obstacle(&self, act: &Act, destination: &str, faults: Faults) -> Option<String> {
        let here = self.lanes.iter().any(|lane| lane.name() == destination);
        match act.verb {
            Verb::Drop if here && !faults.has(Fault::DropUnasked) => {
                Some(format!("the relay that owns the shard still has the destination {destination}"))
            }
            Verb::Drop if destination == NO_ROUTE => {
                Some("what no route names is no destination: skip or redrive it".to_owned())
            }
            Verb::Drop => None,
            Verb::Skip => None,
            Verb::Redrive if destination == NO_ROUTE || here => None,
            Verb::Edit if destination == NO_ROUTE => Some("what no route names cannot be edited".to_owned()),
            Verb::Edit if here && act.edit.is_some() => None,
            Verb::Redrive | Verb::Edit if !here => {
                Some(format!("the relay that owns the shard has no destination {destination}"))
            }
            _ => Some("this version of the relay cannot read what it is about".to_owned()),
        }
    }

    fn refuse(&mut self, act: &Act, why: &str, now: Now, events: &mut Vec<Event>) {
        self.acts.note(act, ActState::Refused, &format!("OUT-4018 {why}"), now);
        self.tell_act(act, Some(why.to_owned()), events);
    }

    fn tell_act(&self, act: &Act, refused: Option<String>, events: &mut Vec<Event>) {
        let (shard, number, verb, destination) = (self.shard, act.number, act.verb, act.destination.clone());
        events.push(Event::Acted { shard, number, verb, destination, done: act.done, left: act.left, refused });
    }

    /// A pause, or its end, takes effect at once.
    fn pause(&mut self, act: &Act, now: Now, events: &mut Vec<Event>) {
        let destination = act.destination.clone();
        let write = if act.verb == Verb::Pause {
            self.acts.paused.insert(destination.clone());
            PauseWrite::Pause(destination)
        } else {
            self.acts.paused.remove(&destination);
            PauseWrite::Resume(destination)
        };
        self.acts.note(act, ActState::Done, "", now).pause = Some(write);
        self.tell_act(act, None, events);
    }

    /// Whether a lane begins nothing new.
    pub(crate) fn is_paused(&self, index: DestinationIndex, config: &Config) -> bool {
        let paused = &self.acts.paused;
        if paused.is_empty() || config.faults.has(Fault::PauseIgnored) {
            return false;
        }
        let name = self.lanes.get(usize::from(index.0)).map(|lane| lane.name().to_owned());
        paused.contains(&None) || paused.contains(&name)
    }

    /// Goes on with the acts that are under way. `find` is called for each that must see more parked rows.
    pub(crate) fn work_acts(&mut self, config: &Config, now: Now, events: &mut Vec<Event>, mut find: impl FnMut(Find)) {
        if self.acts.walks.is_empty() || !self.proven_owner {
            return;
        }
        let mut walks = std::mem::take(&mut self.acts.walks);
        let mut edited: BTreeSet<(String, Option<Position>)> = BTreeSet::new();
        walks.retain(|_, walk| {
            let what = || (walk.destination.clone(), walk.selector.position);
            let edits = (walk.act.verb == Verb::Edit).then(what);
            walk.waits = edits.as_ref().is_some_and(|what| edited.contains(what));
            let goes_on = walk.waits || !self.go_on(walk, config, now, events, &mut find);
            edited.extend(edits.filter(|_| goes_on));
            goes_on
        });
        self.acts.walks = walks;
    }

    /// Goes on with one. True: it is over.
    fn go_on(
        &mut self,
        walk: &mut Walk,
        config: &Config,
        now: Now,
        events: &mut Vec<Event>,
        find: &mut impl FnMut(Find),
    ) -> bool {
        loop {
            let Some(found) = walk.page.pop_front() else {
                if walk.ended {
                    let resumes = walk.act.verb == Verb::Drop && self.drop_lane(walk, config);
                    let write = self.acts.note(&walk.act, ActState::Done, &walk.note, now);
                    write.pause = resumes.then(|| PauseWrite::Resume(Some(walk.destination.clone())));
                    self.tell_act(&walk.act, None, events);
                    return true;
                }
                if !walk.reading && now.mono_us >= walk.read_at_us {
                    (walk.reading, walk.edits_before) = (true, self.edits_stored(&walk.destination));
                    find(walk.find());
                }
                return false;
            };
            // After an edit the page may show a message as it was, with another key.
            if walk.edits_before != self.edits_stored(&walk.destination) {
                (walk.ended, walk.read_at_us) = (false, 0);
                walk.page.clear();
                continue;
            }
            let may = walk.next_at_us <= now.mono_us && self.acts.pending < MOST_PENDING;
            let changed = if may { self.carry_out(walk, &found, config, now) } else { Changed::Later };
            match changed {
                Changed::Later => {
                    walk.page.push_front(found);
                    return false;
                }
                Changed::Yes => {
                    walk.act.done += 1;
                    walk.passed(now);
                    self.acts.touch(
                        &walk.act,
                        &walk.destination,
                        Run { first: found.entry.position.0, last: found.entry.position.0 },
                    );
                }
                Changed::No => {}
            }
            walk.act.next = Position(found.entry.position.0 + 1);
            self.acts.note(&walk.act, ActState::Open, &walk.note, now);
        }
    }

    /// Nothing of a destination is parked any more: its lane goes with the checkpoint that says so, and with it a pause
    /// (true: it is to). Nothing that was acknowledged before is looked for, should it come back.
    fn drop_lane(&mut self, walk: &Walk, config: &Config) -> bool {
        if !config.faults.has(Fault::DropKeepsLane) {
            self.carried.retain(|state| state.destination != walk.destination);
        }
        if let Some(last) = self.log_end.0.checked_sub(1)
            && !config.faults.has(Fault::DropNotRecorded)
        {
            self.acts.touch(&walk.act, &walk.destination, Run { first: 0, last });
        }
        self.acts.paused.remove(&Some(walk.destination.clone()));
        !config.faults.has(Fault::DropKeepsPause)
    }

    fn edits_stored(&self, destination: &str) -> u64 {
        self.lanes.iter().find(|lane| lane.name() == destination).map_or(0, crate::lane::Lane::edits_stored)
    }

    fn carry_out(&mut self, walk: &mut Walk, found: &FoundParked, config: &Config, now: Now) -> Changed {
        let lane = self.lanes.iter_mut().find(|lane| lane.name() == walk.destination);
        match (walk.act.verb, lane) {
            (Verb::Redrive, Some(lane)) => lane.redrive(&found.entry, now),
            (Verb::Redrive, None) => self.reroute(walk, found, config, now),
            (Verb::Skip, Some(lane)) => lane.skip(&found.entry, now),
            (Verb::Drop, _) if config.faults.has(Fault::DropKeepsParked) => Changed::No,
            (Verb::Skip | Verb::Drop, None) => self.remove_laneless(&walk.destination, found.entry.position, now),
            (Verb::Edit, Some(_)) => self.edit(walk, found, config, now),
            _ => Changed::No,
        }
    }

    /// Removes a parked row of a destination that has no lane here.
    fn remove_laneless(&mut self, destination: &str, position: Position, now: Now) -> Changed {
        if !self.acts.gone.entry(destination.to_owned()).or_default().insert(position.0) {
            return Changed::No;
        }
        let (destination, shard) = (destination.to_owned(), self.shard);
        self.unrouted.push(ParkedWrite::Remove { destination, shard, position });
        self.acts.changed_at_us.get_or_insert(now.mono_us);
        Changed::Yes
    }

    /// A message that no route named goes to the destinations that the routes name for its topic now.
    fn reroute(&mut self, walk: &mut Walk, found: &FoundParked, config: &Config, now: Now) -> Changed {
        let Some(message) = found.message.as_ref().filter(|m| m.defect.is_none()) else {
            return walk.leave("OUT-4002 what cannot be read, or is too large, stays without a route");
        };
        let destinations = config.routes.destinations(&message.topic);
        if destinations.is_empty() {
            return walk.leave("OUT-4001 no route names a destination for the topic");
        }
        if self.remove_laneless(&walk.destination, message.position, now) == Changed::No {
            return Changed::No;
        }
        let message = Arc::new(Message { destinations, ..message.as_ref().clone() });
        for destination in destinations.iter() {
            if let Some(lane) = self.lane_mut(destination) {
                lane.adopt(message.clone(), now);
            }
        }
        Changed::Yes
    }

    fn edit(&mut self, walk: &mut Walk, found: &FoundParked, config: &Config, now: Now) -> Changed {
        let (Some(edit), Some(message)) = (&walk.act.edit, &found.message) else {
            return walk.leave("OUT-4018 its content cannot be read");
        };
        let edited = edit.apply(message);
        if let Some(defect) = &edited.defect {
            return walk.leave(&format!("OUT-4018 it could not be delivered after the edit either: {defect}"));
        }
        let edited = if config.faults.has(Fault::EditIgnored) { message.clone() } else { Arc::new(edited) };
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.name() == walk.destination) else { return Changed::No };
        if lane.is_edited_since(walk.act.number, message.position) {
            return walk.leave("OUT-4018 a newer edit was carried out before it");
        }
        let changed = lane.edit(walk.act.number, &found.entry, edited, now);
        if changed == Changed::Yes {
            let original = Original { destination: walk.destination.clone(), message: message.clone() };
            self.acts.note(&walk.act, ActState::Open, &walk.note, now).original = Some(original);
        }
        changed
    }

    /// Parked rows that an act selects were read, or (None) could not be.
    pub(crate) fn on_found(
        &mut self,
        act: ActNumber,
        found: Option<Vec<FoundParked>>,
        backoff_ms: (u64, u64),
        now: Now,
        jitter: &mut Jitter,
    ) {
        let Some(walk) = self.acts.walks.get_mut(&act).filter(|w| w.reading) else { return };
        walk.reading = false;
        match found {
            Some(found) => {
                walk.failures = 0;
                walk.ended = found.len() < walk.find().limit;
                walk.page = found.into();
            }
            None => {
                walk.failures += 1;
                walk.read_at_us = now.after_ms(jitter.backoff_ms(walk.failures, backoff_ms));
            }
        }
    }

    /// When acts go on by themselves, microseconds of the monotonic clock.
    pub(crate) fn acts_deadline_us(&self, now: Now) -> Option<u64> {
        let one = |walk: &Walk| match walk.page.is_empty() {
            true => (!walk.reading && !walk.ended && !walk.waits).then_some(walk.read_at_us),
            // What else it may wait for is an answer, or a checkpoint.
            false => (walk.next_at_us > now.mono_us).then(|| walk.wakes_at_us(now)),
        };
        self.acts.walks.values().filter_map(one).min().filter(|_| self.proven_owner)
    }

    /// Whether every act that was seen is carried out, and what it made due was tried.
    pub(crate) fn has_acted(&self) -> bool {
        let a = &self.acts;
        a.walks.is_empty() && a.writes.is_empty() && self.lanes.iter().all(crate::lane::Lane::is_redriven)
    }
}

impl Walk {
    const fn new(act: Act, destination: String, selector: Selector, now: Now) -> Self {
        Self {
            act,
            destination,
            selector,
            page: VecDeque::new(),
            reading: false,
            edits_before: 0,
            waits: false,
            ended: false,
            failures: 0,
            read_at_us: 0,
            next_at_us: now.mono_us,
            note: String::new(),
        }
    }

    fn find(&self) -> Find {
        let content = self.act.verb == Verb::Edit || (self.act.verb == Verb::Redrive && self.destination == NO_ROUTE);
        Find {
            act: self.act.number,
            destination: self.destination.clone(),
            selector: self.selector.clone(),
            from: self.act.next,
            limit: if content { PAGE.1 } else { PAGE.0 },
            content,
        }
    }

    /// How far messages are apart, microseconds. None: there is no limit.
    const fn spacing_us(&self) -> Option<u64> {
        1_000_000_000u64.checked_div(self.selector.rate_milli)
    }

    /// When it goes on: several at a time where they are close together.
    fn wakes_at_us(&self, now: Now) -> u64 {
        let several = self.spacing_us().is_some_and(|us| us < BURST_US / 2);
        self.next_at_us.max(if several { now.mono_us.saturating_add(BURST_US / 2) } else { 0 })
    }

    /// A message was changed: when the next may be.
    fn passed(&mut self, now: Now) {
        if let Some(wait_us) = self.spacing_us() {
            self.next_at_us = self.next_at_us.max(now.mono_us.saturating_sub(BURST_US)).saturating_add(wait_us);
        }
    }

    /// A message stays as it is.
    fn leave(&mut self, why: &str) -> Changed {
        self.act.left += 1;
        why.clone_into(&mut self.note);
        Changed::No
    }
}
