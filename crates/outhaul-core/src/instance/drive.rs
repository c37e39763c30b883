//! What an instance does with what comes in, and what it does next.

use super::{
    Cadence, CheckpointAnswer, Command, Event, InCheckpoint, Instance, Mode, Owned, Phase, ReadKind, Recovered,
    UntilEmpty, Writing, destinations::Target, leases::LEASE_SPACING_MS, refusals::Turn,
};
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::allowance::{ALL_SLOTS, Share};
use crate::checkpoint::{Checkpoint, ShardOutcome};
use crate::config::{Now, QUIET_AFTER_MS};
use crate::faults::Fault;
use crate::intake::{ReadToken, Taken};
use crate::lane::{Lane, SendBatch};
use crate::message::{Epoch, Position, Row, Seq, ShardId};
use crate::pipeline::Pipeline;

/// While polls are cut by their limit, the resolved mark is asked for so many times less often.
const BACKLOG_RESOLVES: u64 = 10;

/// The batch, with what its messages are measured by.
fn measured(mut batch: SendBatch, pipeline: &Pipeline, wanted: bool) -> SendBatch {
    if wanted {
        batch.taken_at_us = batch.messages.iter().map(|m| pipeline.taken_at_us(m.position)).collect();
    }
    batch
}

impl Instance {
    pub(super) fn on_recovered(&mut self, now: Now, shard: ShardId, epoch: Epoch, found: Option<Box<Recovered>>) {
        let reads_after = self.intake.last_token();
        let (config, backoff) = (&self.config, self.config.settings.store_backoff_ms);
        let Some(owned) = self.shards.get_mut(&shard).filter(|o| o.epoch == epoch) else { return };
        let Phase::Recovering { under_way, retry_at_us, failures } = &mut owned.phase else { return };
        *under_way = false;
        let Some(found) = found else {
            *failures += 1;
            let wait = self.jitter.backoff_ms(*failures, backoff);
            *retry_at_us = now.after_ms(wait);
            return;
        };
        let (mut pipeline, mut events) = (Pipeline::new(shard, epoch, config, &found, reads_after), Vec::new());
        found.acts.iter().for_each(|act| pipeline.take_act(act.clone(), config.faults, now, &mut events));
        owned.phase = Phase::Running(Box::new(pipeline));
        let (_, log_end) = self.had.entry(shard).or_default();
        let from = std::mem::replace(log_end, found.log_end);
        if from > found.log_end {
            self.commands.push_back(Command::Event(Event::LogWentBack { shard, from, to: found.log_end }));
        }
        self.intake.shard_gained();
        self.schedule_gained();
        self.poll.next_at_us = now.mono_us;
        self.commands.push_back(Command::Event(Event::Running { shard, epoch, log_end: found.log_end }));
        self.tell(events);
    }

    fn drive_recoveries(&mut self, now: Now) {
        if self.mode != Mode::Running {
            return;
        }
        let decided: Vec<ShardId> = self.shards.keys().copied().filter(|s| !self.is_undecided(*s)).collect();
        for shard in decided {
            if let Some(Owned { epoch, phase: Phase::Recovering { under_way, retry_at_us, .. }, .. }) =
                self.shards.get_mut(&shard)
                && !*under_way
                && now.mono_us >= *retry_at_us
            {
                *under_way = true;
                self.commands.push_back(Command::Recover { shard, epoch: *epoch });
            }
        }
    }

    /// A checkpoint that is not decided yet may still change what recovery would read.
    fn is_undecided(&self, shard: ShardId) -> bool {
        self.checkpoint.as_ref().is_some_and(|c| c.shares.iter().any(|s| s.shard == shard))
    }

    // ---- reads -----------------------------------------------------------------------------------------------------

    pub(super) fn on_rows(&mut self, now: Now, token: ReadToken, rows: Option<(Vec<Row>, bool)>) {
        if self.due_read == Some(token) {
            self.on_due(now, token, rows);
            return;
        }
        let is_poll = self.poll_read.as_ref().is_some_and(|(t, _)| *t == token);
        let read = if is_poll { self.poll_read.take() } else { self.rescan_read.take_if(|(t, _)| *t == token) };
        let Some((_, shards)) = read else { return };
        let settings = self.config.settings.clone();
        let cadence = if is_poll { &mut self.poll } else { &mut self.rescan };
        cadence.under_way = false;
        let Some((rows, cut)) = rows else {
            cadence.failures += 1;
            let wait = self.jitter.backoff_ms(cadence.failures, settings.store_backoff_ms);
            cadence.next_at_us = now.after_ms(wait);
            self.intake.end(token, None);
            return;
        };
        cadence.failures = 0;
        let covered = if cut { rows.last().map_or(Seq(0), |r| r.seq) } else { Seq(u64::MAX) };
        let mut taken = 0u32;
        let newest_at_us = rows.last().map(|r| r.created_at_us);
        for row in rows {
            taken += u32::from(!self.schedule.has_asked(row.seq) && self.take(row, token, now, false));
        }
        if is_poll {
            self.line_moves(&shards, token, newest_at_us.filter(|_| cut), cut);
        }
        let complete = is_poll && shards == self.readable_shards(false);
        self.intake.end(token, complete.then_some(covered));
        if taken > 0 {
            self.newest_row_at_us = now.mono_us;
        }
        if is_poll {
            let quiet = now.mono_us >= self.newest_row_at_us.saturating_add(QUIET_AFTER_MS * 1_000);
            let longest_us =
                if quiet { settings.poll_quiet_us.max(settings.poll_idle_us) } else { settings.poll_idle_us };
            // A poll that took long (a slow database, a full machine) is followed by as long a rest: polls then bring
            // more rows, and sends become fewer and larger, where there is nothing to spare.
            let took_us = now.mono_us.saturating_sub(self.poll.began_at_us);
            let shortest_us = took_us.clamp(settings.poll_busy_us, settings.poll_idle_us.max(settings.poll_busy_us));
            self.poll_wait_us = match (cut, taken) {
                (true, _) => 0,
                (false, 1..) => shortest_us,
                (false, 0) => (self.poll_wait_us * 2).clamp(shortest_us, longest_us.max(shortest_us)),
            };
            self.poll.next_at_us = now.mono_us.saturating_add(self.poll_wait_us);
            self.mark_until_empty(token, complete && !cut);
        } else {
            // A rescan that is expensive (dead rows under a held snapshot) is repeated less often.
            let took_ms = now.mono_us.saturating_sub(self.rescan.began_at_us) / 1_000;
            let wait = (took_ms * 50).clamp(settings.rescan_min_ms, settings.rescan_max_ms);
            self.rescan.next_at_us = now.after_ms(wait);
        }
    }

    /// Takes one row into its pipeline. Returns whether it was new.
    pub(super) fn take(&mut self, row: Row, token: ReadToken, now: Now, was_scheduled: bool) -> bool {
        let Some(Owned { phase: Phase::Running(p), .. }) = self.shards.get_mut(&row.shard) else { return false };
        // What the database has made ordinary for this owner is moved by it, also while it drains: the next one would take
        // it by `seq`.
        let draining = p.draining || self.mode != Mode::Running;
        let takes = !draining || (was_scheduled && !self.config.faults.has(Fault::DueLeftBehind));
        if token <= p.reads_after || !takes {
            return false;
        }
        let taken = if was_scheduled { self.intake.take_due(&row) } else { self.intake.take(&row) };
        let Taken::New { repeated_id } = taken else { return false };
        let mut events = Vec::new();
        if repeated_id {
            events.push(Event::RepeatedId { id: row.id.clone(), seq: row.seq });
        }
        let created_at_us = row.created_at_us;
        p.accept(row, was_scheduled, &self.config, now, &mut events);
        if let Some(waits) = self.waits_us.as_mut().filter(|_| !was_scheduled) {
            waits.push(now.wall_us.saturating_sub(created_at_us));
        }
        self.tell(events);
        true
    }

    /// Shards that are read; with `room`, only those that can take more.
    pub(super) fn readable_shards(&self, room: bool) -> Vec<ShardId> {
        self.pipelines().filter(|(_, p)| !p.draining && (!room || p.has_room(&self.config))).map(|(s, _)| s).collect()
    }

    fn drive_reads(&mut self, now: Now) {
        if self.mode != Mode::Running {
            return;
        }
        if !self.poll.under_way && now.mono_us >= self.poll.next_at_us {
            let shards = self.readable_shards(true);
            if !shards.is_empty() {
                let (token, ranges, known) = self.intake.begin_poll();
                self.poll.under_way = true;
                self.poll.began_at_us = now.mono_us;
                self.poll_read = Some((token, shards.clone()));
                self.read(token, ReadKind::Poll, shards, ranges, known);
            }
        }
        if self.rescan.next_at_us == 0 {
            // The first poll begins at the start of the table too.
            self.rescan.next_at_us = now.after_ms(self.config.settings.rescan_min_ms);
        }
        if !self.rescan.under_way && now.mono_us >= self.rescan.next_at_us {
            let shards = self.readable_shards(true);
            if !shards.is_empty() {
                let (token, ranges, known) = self.intake.begin_rescan();
                self.rescan.under_way = true;
                self.rescan.began_at_us = now.mono_us;
                self.rescan_read = Some((token, shards.clone()));
                self.read(token, ReadKind::Rescan, shards, ranges, known);
            }
        }
        if !self.resolve.under_way && now.mono_us >= self.resolve.next_at_us && self.intake.wants_resolve() {
            self.resolve.under_way = true;
            self.commands.push_back(Command::Resolve { seen: self.intake.newest() });
        }
    }

    pub(super) fn read(
        &mut self,
        token: ReadToken,
        kind: ReadKind,
        shards: Vec<ShardId>,
        ranges: Vec<crate::runs::Run>,
        known: u64,
    ) {
        let limit = self.config.settings.poll_rows.saturating_add(u32::try_from(known).unwrap_or(u32::MAX));
        let max_bytes = self.config.settings.poll_bytes;
        self.commands.push_back(Command::Read { token, kind, shards, ranges, limit, max_bytes });
    }

    pub(super) fn on_resolved(&mut self, now: Now, seq: Option<Seq>) {
        self.resolve.under_way = false;
        // Behind a backlog the mark is of little use: a poll that is cut begins above what is known.
        let behind = if self.poll_wait_us == 0 { BACKLOG_RESOLVES } else { 1 };
        self.resolve.next_at_us = now.after_ms(self.config.settings.resolve_ms.saturating_mul(behind));
        if let Some(seq) = seq {
            let early = self.config.faults.has(Fault::LateCommitIgnored);
            self.intake.on_resolved(if early { self.intake.newest() } else { seq });
        }
    }

    // ---- checkpoints -----------------------------------------------------------------------------------------------

    fn drive_checkpoint(&mut self, now: Now) {
        let mut confirm = None;
        if let Some(c) = &mut self.checkpoint {
            if let Writing::Unknown { asking, ask_at_us, .. } = &mut c.writing
                && !*asking
                && now.mono_us >= *ask_at_us
            {
                *asking = true;
                confirm = Some(c.checkpoint.clone());
            }
            self.commands.extend(confirm.map(Command::Confirm));
            return;
        }
        if now.mono_us < self.checkpoint_not_before_us {
            return;
        }
        let settings = &self.config.settings;
        let mut refusals = std::mem::take(&mut self.refusals);
        let is_due = |p: &Pipeline| p.checkpoint_due_us(&self.config).is_some_and(|at| at <= now.mono_us);
        let wants =
            |shard| self.pipelines().any(|(s, p)| s == shard && p.has_changes() && (p.unmoved().0 > 0 || is_due(p)));
        let turn = refusals.turn(now, wants);
        let takes_part = |shard: ShardId| match turn {
            Turn::Alone(alone) => shard == alone,
            Turn::Others => !refusals.is_refused(shard),
        };
        let parts = || self.pipelines().filter(|(s, _)| takes_part(*s)).map(|(_, p)| p);
        let (rows, bytes) = parts().map(Pipeline::unmoved).fold((0, 0), |(r, b), (rows, bytes)| (r + rows, b + bytes));
        let full = rows >= settings.checkpoint_rows || bytes >= settings.checkpoint_bytes;
        let due = turn != Turn::Others || parts().any(|p| is_due(p) || (full && p.unmoved().0 > 0));
        if !due {
            self.refusals = refusals;
            return;
        }
        let mut waiting = parts().filter(|p| p.unmoved().0 > 0).count();
        let taking_part: BTreeSet<ShardId> = self.shards.keys().copied().filter(|s| takes_part(*s)).collect();
        self.refusals = refusals;
        // Whatever else has rows to move comes along: one transaction for all. Receipts alone wait for their own time.
        let (mut rows_left, mut bytes_left) = (settings.checkpoint_rows, settings.checkpoint_bytes);
        let (mut shards, mut shares) = (Vec::new(), Vec::new());
        for (_, owned) in self.shards.iter_mut().filter(|(shard, _)| taking_part.contains(shard)) {
            let Phase::Running(p) = &mut owned.phase else { continue };
            let has_rows = p.unmoved().0 > 0;
            let is_due = p.checkpoint_due_us(&self.config).is_some_and(|at| at <= now.mono_us);
            if !p.has_changes() || !(has_rows || is_due) {
                continue;
            }
            let (rows, bytes) = if has_rows {
                let part = (rows_left.div_ceil(waiting.max(1)), bytes_left.div_ceil(waiting.max(1)));
                waiting = waiting.saturating_sub(1);
                part
            } else {
                (0, 0)
            };
            if has_rows && rows == 0 {
                continue;
            }
            let (checkpoint, share) = p.share(&self.intake, &self.config, rows, bytes);
            rows_left = rows_left.saturating_sub(checkpoint.moved.len());
            bytes_left = bytes_left.saturating_sub(checkpoint.moved.iter().map(|m| m.weight()).sum());
            shards.push(checkpoint);
            shares.push(share);
        }
        if shards.is_empty() {
            return;
        }
        let owner = self.config.owner.clone();
        let checkpoint = Arc::new(Checkpoint { owner, destinations: self.names.clone(), shards });
        self.checkpoint = Some(InCheckpoint { checkpoint: checkpoint.clone(), shares, writing: Writing::Begun });
        self.commands.push_back(Command::Checkpoint(checkpoint));
    }

    pub(super) fn on_checkpointed(&mut self, now: Now, answer: CheckpointAnswer) {
        match answer {
            CheckpointAnswer::Committed(outcomes) => {
                self.checkpoint_failures = 0;
                let shares = self.checkpoint.iter().flat_map(|c| &c.shares);
                self.refusals.written(shares.map(|share| share.shard));
                self.finish_checkpoint(now, outcomes.into_iter().map(Some).collect());
            }
            CheckpointAnswer::Unknown if self.config.faults.has(Fault::UnknownTakenForNotWritten) => {
                self.on_checkpointed(now, CheckpointAnswer::NotWritten);
            }
            CheckpointAnswer::NotWritten => {
                let shards: Vec<ShardId> =
                    self.checkpoint.iter().flat_map(|c| &c.shares).map(|share| share.shard).collect();
                // Where the database does not answer at all, it is nobody's in particular.
                let answers = self.leases.failures == 0;
                let mut jitter = self.jitter.clone();
                let backoff = (&mut jitter, self.config.settings.store_backoff_ms);
                let of_one =
                    answers && self.refusals.failed(&shards, self.checkpoint_failures.saturating_add(1), now, backoff);
                self.jitter = jitter;
                if !of_one {
                    self.checkpoint_failed(now);
                }
                self.finish_checkpoint(now, Vec::new());
            }
            CheckpointAnswer::Unknown => {
                if let Some(c) = &mut self.checkpoint {
                    c.writing = Writing::Unknown { asking: false, ask_at_us: now.mono_us, failures: 0 };
                    self.commands.push_back(Command::Event(Event::CommitUnknown));
                }
            }
        }
    }

    fn checkpoint_failed(&mut self, now: Now) {
        self.checkpoint_failures += 1;
        let wait = self.jitter.backoff_ms(self.checkpoint_failures, self.config.settings.store_backoff_ms);
        self.checkpoint_not_before_us = now.after_ms(wait);
    }

    pub(super) fn on_confirmed(&mut self, now: Now, answer: Option<Vec<Option<ShardOutcome>>>) {
        let backoff = self.config.settings.store_backoff_ms;
        let Some(InCheckpoint { writing: Writing::Unknown { asking, ask_at_us, failures }, .. }) = &mut self.checkpoint
        else {
            return;
        };
        let Some(outcomes) = answer else {
            *asking = false;
            *failures += 1;
            let wait = self.jitter.backoff_ms(*failures, backoff);
            *ask_at_us = now.after_ms(wait);
            return;
        };
        let applied = outcomes.contains(&Some(ShardOutcome::Written));
        self.commands.push_back(Command::Event(Event::CommitKnown { applied }));
        self.finish_checkpoint(now, outcomes);
    }

    /// The checkpoint is decided: one outcome a shard, None (or missing) for not applied.
    fn finish_checkpoint(&mut self, now: Now, outcomes: Vec<Option<ShardOutcome>>) {
        let Some(c) = self.checkpoint.take() else { return };
        let outcomes = outcomes.into_iter().chain(std::iter::repeat(None));
        for (share, outcome) in c.shares.into_iter().zip(outcomes) {
            let (shard, epoch) = (share.shard, share.epoch);
            if outcome == Some(ShardOutcome::Written) {
                // Also for a shard that was forgotten meanwhile: its rows are gone, and reads under way may show them.
                // A forgotten shard's rows are not known any more, which `moved` does not mind.
                if self.pipeline(shard, epoch).is_some() {
                    match self.config.faults.has(Fault::MovedForgottenAtCommit) {
                        false => self.intake.moved(share.seqs()),
                        true => self.intake.forget(share.seqs()),
                    }
                }
            }
            let config = self.config.clone();
            let Some(p) = self.pipeline(shard, epoch) else { continue };
            match outcome {
                Some(ShardOutcome::Written) => {
                    p.committed(&share, &config, now);
                    let end = p.log_end();
                    self.had.entry(shard).or_default().1 = end;
                }
                None => p.not_committed(share, now),
                Some(ShardOutcome::Fenced) => self.fence(shard),
                Some(ShardOutcome::Mismatch) => self.let_go(now, shard, epoch),
            }
        }
    }

    fn let_go(&mut self, now: Now, shard: ShardId, epoch: Epoch) {
        self.commands.push_back(Command::Event(Event::Mismatch { shard }));
        self.checkpoint_failed(now); // If it happens again and again, then not in a hot loop.
        self.forget(shard);
        self.shards.insert(shard, Owned { epoch, lease_until_us: 0, phase: Phase::LetGo });
    }

    // ---- until empty -----------------------------------------------------------------------------------------------

    fn mark_until_empty(&mut self, token: ReadToken, complete: bool) {
        if let UntilEmpty::Looking(Some((after, due_us))) = self.until_empty
            && complete
            && token > after
            && self.schedule.is_clear(due_us)
        {
            self.until_empty = UntilEmpty::Below(self.pipelines().map(|(s, p)| (s, p.end())).collect());
        }
    }

    fn drive_until_empty(&mut self, now: Now) {
        match &self.until_empty {
            UntilEmpty::Off => {}
            UntilEmpty::Looking(_) if self.mode != Mode::Running => {}
            UntilEmpty::Looking(after) => {
                // Every shard must be accounted for: running here, or held by another instance that lives. One that was
                // killed before this process began no longer holds anything a ttl later.
                let ttl_us = self.config.settings.lease_ttl_ms * 1_000;
                let others_live =
                    self.first_report_at_us.is_some_and(|first| self.report_at_us >= first.saturating_add(ttl_us));
                let all_running = !self.report.leases.is_empty()
                    && self.report.leases.iter().all(|l| {
                        let other =
                            others_live && l.owner.as_deref().is_some_and(|o| o != self.config.owner) && !l.expired;
                        other || self.pipelines().any(|(s, p)| s == l.shard && !p.draining)
                    });
                match (all_running, after) {
                    (true, None) => {
                        self.until_empty = UntilEmpty::Looking(Some((self.intake.last_token(), now.mono_us)));
                        self.schedule.want_all();
                    }
                    (false, Some(_)) => self.until_empty = UntilEmpty::Looking(None),
                    _ => {}
                }
            }
            UntilEmpty::Below(ends) => {
                // A destination that is back is asked what it still has, before that counts as settled.
                let known = |p: &Pipeline| {
                    p.lanes().iter().zip(&self.targets).all(|(l, t)| t.open().is_none() || l.is_verified(t.open()))
                };
                let settled = ends.iter().all(|(shard, end)| {
                    self.pipelines().any(|(s, p)| s == *shard && p.is_settled_below(*end) && p.has_acted() && known(p))
                });
                let lost = ends.keys().any(|shard| !self.pipelines().any(|(s, _)| s == *shard));
                if lost {
                    self.until_empty = UntilEmpty::Looking(None);
                } else if settled && !self.pipelines().any(|(_, p)| p.lanes().iter().any(Lane::tries_parked)) {
                    self.until_empty = UntilEmpty::Off;
                    self.drain();
                    return;
                }
                // What a try of a parked message brings has to be proven too: those under way are awaited, and while nothing
                // else is, no other begins.
                for owned in self.shards.values_mut() {
                    if let Phase::Running(p) = &mut owned.phase {
                        p.hurry = true;
                        p.lanes_mut().for_each(|lane| lane.leave_parked(settled && !lost));
                    }
                }
            }
        }
    }

    // ---- the turn --------------------------------------------------------------------------------------------------

    pub(super) fn drive(&mut self, now: Now) {
        if self.mode == Mode::Stopped {
            return;
        }
        if self.mode == Mode::Draining {
            for owned in self.shards.values_mut() {
                if let Phase::Running(p) = &mut owned.phase {
                    p.draining = true;
                }
            }
        }
        self.drive_until_empty(now);
        self.drive_recoveries(now);
        self.drive_destinations(now);
        self.drive_acts(now);
        self.drive_lanes(now);
        self.drive_schedule(now);
        self.drive_reads(now);
        self.drive_checkpoint(now);
        self.drive_leases(now);
    }

    fn drive_lanes(&mut self, now: Now) {
        let mut events = Vec::new();
        for (shard, owned) in &mut self.shards {
            let (shard, epoch, until) = (*shard, owned.epoch, owned.lease_until_us);
            let Phase::Running(p) = &mut owned.phase else { continue };
            if p.draining {
                continue;
            }
            let commands = &mut self.commands;
            p.advance(&self.config, now, &mut events, |destination, from, edited| {
                commands.push_back(Command::ReadLog { shard, epoch, destination, from, edited });
            });
            if !p.is_proven() && !self.config.faults.has(Fault::SendAheadUnproven) {
                continue;
            }
            for destination in self.config.indexes() {
                let paused = p.is_paused(destination, &self.config);
                let start = self.targets.get(usize::from(destination.0)).and_then(Target::open).filter(|_| !paused);
                let Some(lane) = p.lane_mut(destination) else { continue };
                let positions = lane.begin_parked(now, start);
                if !positions.is_empty() {
                    self.commands.push_back(Command::ReadParked { shard, epoch, destination, positions });
                }
                let Some(target) = self.targets.get_mut(usize::from(destination.0)) else { continue };
                if target.allowance.is_limited() {
                    continue; // Lanes of all shards take turns.
                }
                let batches = lane.begin_sends(now, until, start, ALL_SLOTS, &mut target.allowance);
                for batch in batches {
                    let batch = measured(batch, p, self.waits_us.is_some());
                    self.commands.push_back(Command::Send { shard, epoch, destination, batch });
                }
            }
        }
        self.tell(events);
        if self.targets.iter().any(|target| target.allowance.is_limited()) {
            self.drive_limited(now);
        }
    }

    /// Begins batches for destinations that have limits, as far as these go: one slot after the other, over all shards.
    fn drive_limited(&mut self, now: Now) {
        let (share, faults) = (self.share(now), self.config.faults);
        for (destination, target) in self.config.indexes().zip(&mut self.targets) {
            let (open, allowance) = (target.open(), &mut target.allowance);
            if !allowance.is_limited() {
                continue;
            }
            allowance.advance(now, share);
            let Some(start) = open.filter(|_| allowance.most().is_some()) else { continue };
            if faults.has(Fault::NoTurns) {
                allowance.forget_turn();
            }
            let alone = faults.has(Fault::RatePerLane).then(|| allowance.clone());
            for (shards, slots) in allowance.turns() {
                for (shard, owned) in self.shards.range_mut(shards) {
                    let (epoch, until) = (owned.epoch, owned.lease_until_us);
                    let Phase::Running(p) = &mut owned.phase else { continue };
                    if p.draining || !p.is_proven() || p.is_paused(destination, &self.config) {
                        continue;
                    }
                    let Some(lane) = p.lane_mut(destination) else { continue };
                    if let Some(full) = &alone {
                        allowance.refill(full);
                    }
                    let batches = lane.begin_sends(now, until, Some(start), slots, allowance);
                    for batch in batches {
                        let batch = measured(batch, p, self.waits_us.is_some());
                        self.commands.push_back(Command::Send { shard: *shard, epoch, destination, batch });
                    }
                }
            }
        }
    }

    /// What this instance has of the shards, for certain. What it hands over it has no more.
    fn share(&self, now: Now) -> Share {
        if self.config.faults.has(Fault::RateNotShared) {
            return Share { mine: 1, of: 1 };
        }
        let is_mine = |owned: &&Owned| {
            now.mono_us < owned.lease_until_us && matches!(&owned.phase, Phase::Running(p) if !p.draining)
        };
        Share { mine: self.shards.values().filter(is_mine).count(), of: self.report.leases.len() }
    }

    /// When [`super::Input::Tick`] is needed at the latest, microseconds of the monotonic clock. None: only an answer
    /// can bring anything new.
    pub fn deadline_us(&self, now: Now) -> Option<u64> {
        if self.mode == Mode::Stopped {
            return None;
        }
        let idle = |c: &Cadence| (!c.under_way).then_some(c.next_at_us);
        let mut times: Vec<u64> = Vec::new();
        times.extend(idle(&self.leases));
        let spaced = self.leases.began_at_us.saturating_add(LEASE_SPACING_MS * 1_000);
        if !self.leases.under_way && now.mono_us < spaced {
            times.push(spaced);
        }
        if self.mode == Mode::Running {
            times.extend(idle(&self.poll).filter(|_| !self.readable_shards(true).is_empty()));
            times.extend(idle(&self.rescan).filter(|_| !self.readable_shards(true).is_empty()));
            if self.pipelines().any(|(_, p)| !p.draining) {
                times.extend(self.schedule.look_due_us());
                times.extend(self.schedule.deadline_us(now));
            }
            times.extend(idle(&self.resolve).filter(|_| self.intake.wants_resolve()));
            times.extend(idle(&self.acts).filter(|_| self.pipelines().any(|(_, p)| !p.draining)));
            if self.pipelines().any(|(_, p)| !p.draining) {
                times.extend(self.targets.iter().filter_map(Target::deadline_us));
                times.extend(self.config.indexes().zip(&self.targets).filter_map(|(destination, target)| {
                    let lanes = || self.pipelines().filter_map(|(_, p)| p.lanes().get(usize::from(destination.0)));
                    target.prove_deadline_us(|start| lanes().any(|lane| lane.has_unproven(start)))
                }));
            }
        }
        for (shard, owned) in &self.shards {
            match &owned.phase {
                Phase::Recovering { under_way, retry_at_us, .. } => {
                    let waits = *under_way || self.mode != Mode::Running || self.is_undecided(*shard);
                    times.extend((!waits).then_some(*retry_at_us));
                }
                Phase::LetGo => {}
                Phase::Running(p) => {
                    if !p.draining && p.is_proven() {
                        let lanes = self.config.indexes().zip(p.lanes().iter().zip(&self.targets));
                        let until = owned.lease_until_us;
                        times.extend(lanes.filter_map(|(index, (lane, target))| {
                            let start = target.open().filter(|_| !p.is_paused(index, &self.config));
                            lane.deadline_us(now, until, start, target.allowance.gate())
                        }));
                        times.extend(p.acts_deadline_us(now));
                    }
                    if self.checkpoint.is_none() {
                        let due = p.checkpoint_due_us(&self.config);
                        let own = self.refusals.not_before_us(*shard).unwrap_or_default();
                        times.extend(due.map(|at| at.max(self.checkpoint_not_before_us).max(own)));
                    }
                }
            }
        }
        if let Some(InCheckpoint { writing: Writing::Unknown { asking: false, ask_at_us, .. }, .. }) = &self.checkpoint
        {
            times.push(*ask_at_us);
        }
        // Never in the past, and never so near that the caller spins.
        const SHORTEST_US: u64 = 200;
        times.into_iter().min().map(|at| at.max(now.mono_us.saturating_add(SHORTEST_US)))
    }

    /// Position up to which a shard's log is known to be written, for a shard that is running.
    pub fn log_end(&self, shard: ShardId) -> Option<Position> {
        self.pipelines().find(|(s, _)| *s == shard).map(|(_, p)| p.log_end())
    }
}
