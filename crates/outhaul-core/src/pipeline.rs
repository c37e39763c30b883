//! The pipeline of one shard that this instance owns.

mod acts;

use std::collections::VecDeque;
use std::sync::Arc;

use acts::{Acts, ActsShare};

use crate::checkpoint::ShardCheckpoint;
use crate::config::{Config, Now};
use crate::destination::{DestinationIndex, NO_ROUTE};
use crate::faults::Fault;
use crate::instance::{Event, Recovered};
use crate::intake::{Intake, ReadToken};
use crate::lane::parked::told;
use crate::lane::{Lane, LaneShare, LaneView, RecentReceipt};
use crate::message::{Defect, Epoch, Message, Position, Row, Seq, ShardId};
use crate::parked::{ParkedEntry, ParkedState, ParkedWrite};
use crate::receipt::{LaneReceipt, LaneState, ReceiptRow};
use crate::runs::{Run, Runs};

/// Messages in memory: all that are not moved yet, and the newest of those that are.
#[derive(Debug, Default)]
pub(crate) struct Window {
    base: Position,
    messages: VecDeque<Arc<Message>>,
    /// When each was taken, microseconds of the wall clock. 0: it was scheduled.
    taken_at_us: VecDeque<i64>,
    bytes: usize,
}

impl Window {
    pub(crate) const fn base(&self) -> Position {
        self.base
    }

    pub(crate) fn get(&self, position: Position) -> Option<Arc<Message>> {
        let at = usize::try_from(position.0.checked_sub(self.base.0)?).ok()?;
        self.messages.get(at).cloned()
    }

    /// When a message was taken, microseconds of the wall clock. 0: it was scheduled, or is not in memory.
    pub(crate) fn taken_at_us(&self, position: Position) -> i64 {
        let at = position.0.checked_sub(self.base.0).and_then(|at| usize::try_from(at).ok());
        at.and_then(|at| self.taken_at_us.get(at)).copied().unwrap_or(0)
    }

    fn end(&self) -> Position {
        Position(self.base.0 + self.messages.len() as u64)
    }

    fn from(&self, position: Position) -> impl Iterator<Item = &Arc<Message>> {
        let skip = usize::try_from(position.0.saturating_sub(self.base.0)).unwrap_or(usize::MAX);
        self.messages.iter().skip(skip)
    }
}

/// How far everything without a time of its own was read and moved: what comes after it in time may be taken.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    /// All that had committed by then is moved, microseconds of the monotonic clock.
    mono_us: u64,
    /// All that was written by then is moved, microseconds since 1970-01-01 UTC, database clock: where polls are cut.
    wall_us: i64,
    /// The next such moments, once everything below the position is moved.
    next: Option<(u64, i64, Position)>,
}

/// What a checkpoint took of a pipeline; given back if it does not commit.
#[derive(Debug)]
pub(crate) struct PipelineShare {
    pub(crate) shard: ShardId,
    pub(crate) epoch: Epoch,
    log_end: Position,
    seqs: Vec<Seq>,
    bytes: usize,
    lanes: Vec<LaneShare>,
    unrouted: Vec<ParkedWrite>,
    acts: ActsShare,
}

/// The pipeline of one shard.
#[derive(Debug)]
pub(crate) struct Pipeline {
    shard: ShardId,
    pub(crate) epoch: Epoch,
    /// Rows of older reads may be gone by now.
    pub(crate) reads_after: ReadToken,
    /// End of the log in the database: below it everything is moved.
    log_end: Position,
    number: u64,
    window: Window,
    unmoved_bytes: usize,
    oldest_unmoved_us: Option<u64>,
    newest_seq: Seq,
    /// Below this position, rows were taken in another order than that of their `seq`.
    disorder_end: Position,
    lanes: Vec<Lane>,
    /// Lanes of destinations that are not configured any more: their cursors are carried along.
    carried: Vec<LaneState>,
    unrouted: Vec<ParkedWrite>,
    acts: Acts,
    /// Whether a checkpoint of this epoch has committed: only then may rows be sent before they are moved.
    proven_owner: bool,
    in_checkpoint: bool,
    line: Line,
    pub(crate) draining: bool,
    /// Somebody waits for what was read so far: nothing to store waits for a timer.
    pub(crate) hurry: bool,
}

impl Pipeline {
    pub(crate) fn new(
        shard: ShardId,
        epoch: Epoch,
        config: &Config,
        recovered: &Recovered,
        reads_after: ReadToken,
    ) -> Self {
        let stored = |name: &str| recovered.lanes.lanes.iter().map(|(state, _)| state).find(|s| s.destination == name);
        let lanes: Vec<Lane> = config
            .indexes()
            .zip(config.destinations.iter())
            .map(|(i, d)| {
                let mut lane = Lane::new(shard, i, d.clone(), stored(&d.name), recovered.log_end, config.faults);
                if !config.faults.has(Fault::BlocksNotRecovered) {
                    lane.recover_parked(&recovered.parked);
                }
                lane.recover_edited(&recovered.edited);
                lane
            })
            .collect();
        let carried = recovered
            .lanes
            .lanes
            .iter()
            .map(|(state, _)| state.clone())
            .filter(|s| config.destinations.iter().all(|d| d.name != s.destination))
            .collect();
        Self {
            shard,
            epoch,
            reads_after,
            log_end: recovered.log_end,
            number: recovered.next_number,
            window: Window { base: recovered.log_end, ..Window::default() },
            unmoved_bytes: 0,
            oldest_unmoved_us: None,
            newest_seq: Seq(0),
            disorder_end: Position(0),
            lanes,
            carried,
            unrouted: Vec::new(),
            acts: Acts::new(&recovered.paused, config),
            proven_owner: false,
            in_checkpoint: false,
            line: Line::default(),
            draining: false,
            hurry: false,
        }
    }

    /// As others may see it; `paused` and `limited` of a lane are not its own affair.
    pub(crate) fn lane_views(&self, config: &Config) -> Vec<LaneView> {
        let released = self.released(config);
        let view = |(index, lane): (DestinationIndex, &Lane)| {
            let unsettled = lane.unsettled(released);
            let first = (unsettled > 0).then(|| lane.first_unsettled());
            let oldest_at_us = first.and_then(|p| self.window.get(p)).map(|m| m.created_at_us);
            LaneView { unsettled, oldest_at_us, paused: self.is_paused(index, config), ..lane.view() }
        };
        config.indexes().zip(&self.lanes).map(view).collect()
    }

    /// Since when something waits to be stored, microseconds of the monotonic clock.
    pub(crate) fn unstored_since_us(&self) -> Option<u64> {
        let lanes = self.lanes.iter().filter_map(Lane::changed_at_us);
        lanes.chain(self.oldest_unmoved_us).chain(self.acts.changed_at_us()).min()
    }

    /// When a message was taken, see [`Window::taken_at_us`].
    pub(crate) fn taken_at_us(&self, position: Position) -> i64 {
        self.window.taken_at_us(position)
    }

    pub(crate) fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    pub(crate) fn lanes_mut(&mut self) -> impl Iterator<Item = &mut Lane> {
        self.lanes.iter_mut()
    }

    pub(crate) fn lane_mut(&mut self, index: DestinationIndex) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::from(index.0))
    }

    pub(crate) const fn log_end(&self) -> Position {
        self.log_end
    }

    pub(crate) fn end(&self) -> Position {
        self.window.end()
    }

    pub(crate) fn has_room(&self, config: &Config) -> bool {
        self.unmoved_bytes < config.settings.unmoved_bytes
    }

    pub(crate) fn unmoved(&self) -> (usize, usize) {
        (usize::try_from(self.window.end().0 - self.log_end.0).unwrap_or(usize::MAX), self.unmoved_bytes)
    }

    /// Bytes of messages in memory.
    pub(crate) const fn memory(&self) -> usize {
        self.window.bytes
    }

    /// The newest acknowledgements of a lane, as far as they are in memory: those that `share` has taken, then those that
    /// wait for the next checkpoint.
    pub(crate) fn recent(&self, index: DestinationIndex, share: Option<&PipelineShare>) -> Vec<RecentReceipt> {
        let at = usize::from(index.0);
        let taken = share.and_then(|s| s.lanes.get(at)).map_or(&[][..], |l| &l.receipts);
        let waiting = self.lanes.get(at).map_or(&[][..], Lane::receipts);
        let recent = |r: &LaneReceipt| RecentReceipt {
            position: r.position,
            id: self.window.get(r.position).map(|m| m.id.clone()),
            receipt: r.receipt.clone(),
        };
        taken.iter().chain(waiting).map(recent).collect()
    }

    /// Gives a row its position and puts it into the window.
    pub(crate) fn accept(&mut self, row: Row, was_scheduled: bool, config: &Config, now: Now, events: &mut Vec<Event>) {
        let destinations = config.routes.destinations(&row.topic);
        let message = Arc::new(Message::from_row(row, self.window.end(), destinations));
        if message.seq < self.newest_seq {
            self.disorder_end = Position(message.position.0 + 1);
        }
        self.newest_seq = self.newest_seq.max(message.seq);
        if destinations.is_empty() {
            let (code, text) = match &message.defect {
                Some(defect) => ("OUT-4002", defect.to_string()),
                None => ("OUT-4001", "no route names a destination for this topic".to_owned()),
            };
            events.push(Event::NoRoute { shard: self.shard, position: message.position, topic: message.topic.clone() });
            let entry = ParkedEntry {
                destination: NO_ROUTE.to_owned(),
                shard: self.shard,
                position: message.position,
                key: message.key.clone(),
                state: ParkedState::Dead,
                attempts: 0,
                due_at_us: 0,
                error_code: code.to_owned(),
                error_text: told(&text),
                first_failed_at_us: now.wall_us,
                last_failed_at_us: now.wall_us,
            };
            self.unrouted.push(ParkedWrite::Insert { entry, message: message.clone() });
        }
        if let Some(defect @ Defect::TooLarge { .. }) = &message.defect {
            // Its payload is in the outbox row and nowhere else: every lane must park it in the checkpoint that deletes
            // the row, however far behind the lane may be.
            let what = defect.to_string();
            for (index, lane) in config.indexes().zip(&mut self.lanes) {
                if destinations.contains(index) {
                    lane.park_defective(&message, &what, now, events);
                }
            }
        }
        let weight = message.weight();
        self.unmoved_bytes += weight;
        self.window.bytes += weight;
        self.window.messages.push_back(message);
        self.window.taken_at_us.push_back(if was_scheduled { 0 } else { now.wall_us });
        self.oldest_unmoved_us.get_or_insert(now.mono_us);
    }

    /// A poll that began at `mono_us` was answered in full, or (None) brought rows up to `wall_us`.
    pub(crate) fn line_read(&mut self, mono_us: Option<u64>, wall_us: Option<i64>) {
        let (mono_us, wall_us) = (mono_us.unwrap_or(0), wall_us.unwrap_or(i64::MIN));
        self.line.next.get_or_insert((mono_us, wall_us, self.window.end()));
        self.line_moves();
    }

    fn line_moves(&mut self) {
        let Line { mono_us, wall_us, next } = &mut self.line;
        if let Some((mono, wall, _)) = next.take_if(|(_, _, end)| *end <= self.log_end) {
            *mono_us = mono.max(*mono_us);
            *wall_us = wall.max(*wall_us);
        }
    }

    /// Whether everything without a time of its own that had committed by a moment is moved. `mono_us`, `wall_us`: the
    /// moment by both clocks.
    pub(crate) const fn line_is_past(&self, mono_us: u64, wall_us: i64) -> bool {
        self.line.mono_us >= mono_us || self.line.wall_us > wall_us
    }

    /// Whether a poll would bring it on.
    pub(crate) const fn line_waits_for_poll(&self) -> bool {
        self.line.next.is_none()
    }

    /// Up to where lanes may take messages.
    pub(crate) fn released(&self, config: &Config) -> Position {
        let proven = self.proven_owner || config.faults.has(Fault::SendAheadUnproven);
        if proven && config.settings.send_ahead { self.window.end() } else { self.log_end }
    }

    pub(crate) const fn is_proven(&self) -> bool {
        self.proven_owner
    }

    /// Lets every lane that may send take what it can. `log` is called for each lane that must read on from the log.
    pub(crate) fn advance(
        &mut self,
        config: &Config,
        now: Now,
        events: &mut Vec<Event>,
        mut log: impl FnMut(DestinationIndex, Position, bool),
    ) {
        let released = self.released(config);
        for (index, lane) in config.indexes().zip(&mut self.lanes) {
            if lane.is_new() {
                continue; // Its start is not stored yet.
            }
            if let Some(from) = lane.advance(&self.window, released, now, events) {
                log(index, from, lane.has_edited());
            }
        }
        self.evict(config);
    }

    /// Forgets moved messages that every lane has taken, or that are more than memory may hold.
    fn evict(&mut self, config: &Config) {
        let taken = self.lanes.iter().map(Lane::next).min().unwrap_or(self.log_end);
        while self.window.base < self.log_end
            && (self.window.base < taken || self.window.bytes - self.unmoved_bytes > config.settings.window_bytes)
        {
            let Some(message) = self.window.messages.pop_front() else { break };
            self.window.taken_at_us.pop_front();
            self.window.bytes -= message.weight();
            self.window.base = Position(self.window.base.0 + 1);
        }
    }

    /// When the next checkpoint of this shard is due, microseconds of the monotonic clock.
    pub(crate) fn checkpoint_due_us(&self, config: &Config) -> Option<u64> {
        if self.in_checkpoint {
            return None;
        }
        let (rows, bytes) = self.unmoved();
        let pending = self.lanes.iter().filter_map(Lane::changed_at_us).min();
        let acts = self.acts.changed_at_us();
        // The first one of an epoch proves the owner and stores where new lanes start, whether or not there is a row.
        let now = (!self.proven_owner && !self.draining)
            || ((self.draining || self.hurry) && (rows > 0 || pending.or(acts).is_some()))
            || rows >= config.settings.checkpoint_rows
            || bytes >= config.settings.checkpoint_bytes
            || self.lanes.iter().map(Lane::unstored).any(|(results, most)| results >= most.div_ceil(2));
        if now {
            return Some(0);
        }
        let soon = |t: u64| t.saturating_add(config.settings.checkpoint_interval_ms * 1_000);
        let rows = self.oldest_unmoved_us.into_iter().chain(acts).map(soon);
        let quiet = pending.map(|t| t.saturating_add(config.settings.checkpoint_quiet_ms * 1_000));
        rows.chain(quiet).min()
    }

    /// Whether a checkpoint would write anything.
    pub(crate) fn has_changes(&self) -> bool {
        !self.in_checkpoint
            && (!self.proven_owner
                || self.unmoved().0 > 0
                || self.acts.changed_at_us().is_some()
                || self.lanes.iter().any(|l| l.changed_at_us().is_some()))
    }

    /// What the next checkpoint does for this shard, within `rows` and `bytes`.
    pub(crate) fn share(
        &mut self,
        intake: &Intake,
        config: &Config,
        rows: usize,
        bytes: usize,
    ) -> (ShardCheckpoint, PipelineShare) {
        let mut taken_bytes = 0;
        let moved: Vec<Arc<Message>> = self
            .window
            .from(self.log_end)
            .take(rows)
            .enumerate()
            .take_while(|(n, m)| {
                taken_bytes += m.weight();
                *n == 0 || taken_bytes <= bytes
            })
            .map(|(_, m)| m.clone())
            .collect();
        let log_end = Position(self.log_end.0 + moved.len() as u64);
        let lanes: Vec<LaneShare> = self.lanes.iter_mut().map(|l| l.share(log_end)).collect();
        let (unrouted, later) =
            std::mem::take(&mut self.unrouted).into_iter().partition(|w: &ParkedWrite| w.position() < log_end);
        self.unrouted = later;
        let carried = self.carried.iter().map(|s| (s.clone(), Vec::new()));
        let acts = self.acts.share();
        let receipts = ReceiptRow {
            lanes: lanes.iter().map(|l| (l.state.clone(), l.receipts.clone())).chain(carried).collect(),
            acts: acts.touched.clone(),
        };
        let parked = lanes.iter().flat_map(|l| l.parked.iter().cloned()).chain(unrouted.iter().cloned()).collect();
        let checkpoint = ShardCheckpoint {
            shard: self.shard,
            epoch: self.epoch,
            number: self.number,
            base: self.log_end,
            runs: if config.faults.has(Fault::DeletesOverGaps) {
                let seqs = || moved.iter().map(|m| m.seq.0);
                seqs().min().zip(seqs().max()).map(|(first, last)| Run { first, last }).into_iter().collect()
            } else {
                self.delete_runs(intake, &moved, log_end)
            },
            receipts,
            parked,
            acts: acts.writes.clone(),
            moved,
        };
        let share = PipelineShare {
            shard: self.shard,
            epoch: self.epoch,
            log_end,
            seqs: checkpoint.moved.iter().map(|m| m.seq).collect(),
            bytes: checkpoint.moved.iter().map(|m| m.weight()).sum(),
            lanes,
            unrouted,
            acts,
        };
        self.in_checkpoint = true;
        (checkpoint, share)
    }

    /// Runs in which every `seq` was read and no row of this shard stays behind.
    fn delete_runs(&self, intake: &Intake, moved: &[Arc<Message>], log_end: Position) -> Vec<Run> {
        let runs = intake.runs_around(moved.iter().map(|m| m.seq));
        if self.disorder_end <= log_end
            && moved.iter().map(|m| m.seq).max() < self.window.from(log_end).next().map(|m| m.seq)
        {
            let last = moved.iter().map(|m| m.seq.0).max().unwrap_or(0);
            return runs.into_iter().map(|r| Run { first: r.first, last: r.last.min(last) }).collect();
        }
        let mut cut = Runs::new();
        runs.into_iter().for_each(|r| cut.insert_run(r));
        self.window.from(log_end).for_each(|m| cut.remove(m.seq.0));
        cut.iter().filter(|r| moved.iter().any(|m| r.first <= m.seq.0 && m.seq.0 <= r.last)).collect()
    }

    /// The checkpoint has committed.
    pub(crate) fn committed(&mut self, share: &PipelineShare, config: &Config, now: Now) {
        self.in_checkpoint = false;
        self.proven_owner = true;
        self.number += 1;
        self.log_end = share.log_end;
        self.line_moves();
        self.unmoved_bytes = self.unmoved_bytes.saturating_sub(share.bytes);
        self.oldest_unmoved_us = (self.window.end() > self.log_end).then_some(now.mono_us);
        for (lane, share) in self.lanes.iter_mut().zip(&share.lanes) {
            lane.stored(share);
        }
        self.acts.stored(&share.acts);
        self.evict(config);
    }

    /// The checkpoint did not commit.
    pub(crate) fn not_committed(&mut self, share: PipelineShare, now: Now) {
        self.in_checkpoint = false;
        for (lane, share) in self.lanes.iter_mut().zip(share.lanes) {
            lane.give_back(share, now);
        }
        self.unrouted.splice(0..0, share.unrouted);
        self.acts.give_back(share.acts, now);
    }

    /// A look for open acts begins.
    pub(crate) fn look_for_acts(&mut self) {
        self.acts.look_begins();
    }

    /// Rows that were read and not moved: given up with the pipeline.
    pub(crate) fn unmoved_seqs(&self) -> impl Iterator<Item = Seq> + '_ {
        self.window.from(self.log_end).map(|m| m.seq)
    }

    /// Whether a hand-over has nothing to wait for: nothing under way, nothing unwritten.
    pub(crate) fn is_drained(&self) -> bool {
        self.draining
            && !self.in_checkpoint
            && self.lanes.iter().all(|l| l.in_flight() == 0 && l.changed_at_us().is_none())
            && self.acts.changed_at_us().is_none()
            && self.unmoved().0 == 0
    }

    /// Whether everything below a position is moved, and settled in every lane with all the proof that is demanded.
    pub(crate) fn is_settled_below(&self, position: Position) -> bool {
        self.log_end >= position && self.lanes.iter().all(|l| l.proven() >= position)
    }
}

impl PipelineShare {
    pub(crate) fn seqs(&self) -> impl Iterator<Item = Seq> + '_ {
        self.seqs.iter().copied()
    }
}
