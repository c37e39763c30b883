//! Scheduled rows: looking ahead, and reading what is due.

use super::{Command, Instance, Mode, ReadKind};
use crate::config::Now;
use crate::faults::Fault;
use crate::intake::ReadToken;
use crate::message::{Row, ShardId};
use crate::runs::Run;
use crate::schedule::{SCHEDULED_MAX, Upcoming};

impl Instance {
    /// A shard was gained: what of it is scheduled is not known.
    pub(super) fn schedule_gained(&mut self) {
        if !self.config.faults.has(Fault::ScheduleNotRecovered) {
            self.schedule.want_all();
        }
    }

    pub(super) fn on_ahead(&mut self, now: Now, found: Option<Upcoming>) {
        let running: Vec<ShardId> = self.readable_shards(false);
        let waits = (self.config.settings.schedule_ms, self.config.settings.store_backoff_ms);
        let runs = |shard| running.binary_search(&shard).is_ok();
        if let Some(seq) = self.schedule.end_look(now, found, waits, &mut self.jitter, runs) {
            self.intake.see(seq);
        }
        if self.config.faults.has(Fault::ScheduleNotRecovered) {
            self.schedule.look_at_all_no_more();
        }
    }

    pub(super) fn on_due(&mut self, now: Now, token: ReadToken, rows: Option<(Vec<Row>, bool)>) {
        self.due_read = None;
        let due = self.schedule.end_due(now, rows, self.config.settings.store_backoff_ms, &mut self.jitter);
        for row in due {
            self.take(row, token, now, true);
        }
        self.intake.end(token, None);
    }

    /// A poll of these shards was answered. `wall_us`: where a limit has cut it, when its last row was written.
    pub(super) fn line_moves(&mut self, shards: &[ShardId], token: ReadToken, wall_us: Option<i64>, cut: bool) {
        let began_us = (!cut).then_some(self.poll.began_at_us);
        for shard in shards {
            if let Some(super::Owned { phase: super::Phase::Running(p), .. }) = self.shards.get_mut(shard)
                && token > p.reads_after
                && !p.draining
            {
                p.line_read(began_us, wall_us);
            }
        }
    }

    pub(super) fn drive_schedule(&mut self, now: Now) {
        if self.mode != Mode::Running {
            // What was asked for is awaited before its shards are released.
            if self.mode == Mode::Draining && self.due_read.is_none() {
                let asked = self.schedule.begin_due(now, |_, _, _| false);
                self.read_due(asked);
            }
            return;
        }
        if self.schedule.look_due_us().is_some_and(|at| at <= now.mono_us) {
            let shards = self.readable_shards(false);
            if !shards.is_empty() {
                let ranges = self.schedule.begin_look(now, self.intake.resolved());
                self.commands.push_back(Command::LookAhead { shards, ranges, limit: SCHEDULED_MAX });
            }
        }
        let due = self.schedule.due_shards(now);
        if due.is_empty() || self.due_read.is_some() {
            return;
        }
        let readable = self.readable_shards(true);
        let overtakes = self.config.faults.has(Fault::DueOvertakes);
        let shards = &self.shards;
        let pipeline = |shard: ShardId| match shards.get(&shard) {
            Some(super::Owned { phase: super::Phase::Running(p), .. }) if readable.contains(&shard) => Some(p),
            _ => None,
        };
        let may =
            |shard, mono_us, wall_us| pipeline(shard).is_some_and(|p| overtakes || p.line_is_past(mono_us, wall_us));
        let chosen = self.schedule.begin_due(now, may);
        if chosen.is_none()
            && !self.poll.under_way
            && due.iter().any(|(shard, (mono_us, wall_us))| {
                pipeline(*shard).is_some_and(|p| !p.line_is_past(*mono_us, *wall_us) && p.line_waits_for_poll())
            })
        {
            self.poll.next_at_us = self.poll.next_at_us.min(now.mono_us);
        }
        self.read_due(chosen);
    }

    fn read_due(&mut self, chosen: Option<(Vec<ShardId>, Vec<Run>)>) {
        if let Some((shards, ranges)) = chosen {
            let (token, ranges) = self.intake.begin_exact(ranges);
            self.due_read = Some(token);
            self.read(token, ReadKind::Due, shards, ranges, 0);
        }
    }
}
