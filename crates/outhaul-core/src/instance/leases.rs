//! Leases: what is owned, until when, and what is handed over or let go.

use super::{Command, Event, Instance, Mode, Owned, Phase};
use std::collections::BTreeMap;

use crate::config::Now;
use crate::faults::Fault;
use crate::lease::{self, LeaseReport};
use crate::message::{Epoch, ShardId};
use crate::pipeline::Pipeline;

/// Two lease rounds are never closer than this, milliseconds.
pub(super) const LEASE_SPACING_MS: u64 = 10;
/// Other instances that have another configuration are told of so often, milliseconds.
const OTHERS_AGAIN_MS: u64 = 60_000;
/// The last round is tried so many times. Without it the leases run out by themselves.
const LEAVE_TRIES: u32 = 3;

impl Instance {
    pub(super) fn drain(&mut self) {
        if self.mode == Mode::Running {
            self.mode = Mode::Draining;
            self.leases.next_at_us = 0; // Say so at once: others need not count on this instance.
        }
    }

    pub(super) fn on_leases(&mut self, now: Now, report: Option<LeaseReport>) {
        self.leases.under_way = false;
        let Some(report) = report else {
            self.leases.failures += 1;
            if self.mode == Mode::Leaving {
                if self.leases.failures >= LEAVE_TRIES {
                    return self.stop();
                }
                self.mode = Mode::Draining;
            }
            let wait = self.jitter.backoff_ms(self.leases.failures, self.config.settings.store_backoff_ms);
            self.leases.next_at_us = now.after_ms(wait);
            return;
        };
        if self.mode == Mode::Leaving {
            self.stop();
            return;
        }
        self.leases.failures = 0;
        let until_us = self.leases.began_at_us.saturating_add(self.config.settings.lease_ttl_ms * 1_000);
        let mine: BTreeMap<ShardId, Epoch> = report
            .leases
            .iter()
            .filter(|l| l.owner.as_deref() == Some(&self.config.owner))
            .map(|l| (l.shard, l.epoch))
            .collect();
        let lost: Vec<(ShardId, Epoch)> =
            self.shards.iter().map(|(s, o)| (*s, o.epoch)).filter(|(s, epoch)| mine.get(s) != Some(epoch)).collect();
        for (shard, epoch) in lost {
            if self.releasing.contains(&(shard, epoch)) {
                self.forget(shard);
                self.commands.push_back(Command::Event(Event::Released { shard }));
            } else {
                self.fence(shard);
            }
        }
        for (shard, epoch) in mine {
            match self.shards.get_mut(&shard) {
                Some(owned) => owned.lease_until_us = until_us,
                None => {
                    // Which round acquired it is not known: the next one renews it, and soon.
                    let (newest, _) = self.had.entry(shard).or_default();
                    let phase = match epoch > *newest {
                        true => Phase::Recovering { under_way: false, retry_at_us: 0, failures: 0 },
                        false => Phase::LetGo,
                    };
                    *newest = epoch.max(*newest);
                    self.shards.insert(shard, Owned { epoch, lease_until_us: 0, phase });
                    self.leases.next_at_us = self.leases.began_at_us.saturating_add(LEASE_SPACING_MS * 1_000);
                    self.commands.push_back(Command::Event(Event::Acquired { shard, epoch }));
                }
            }
        }
        self.compare_configurations(now, &report);
        self.report = report;
        self.report_at_us = self.leases.began_at_us;
        self.first_report_at_us.get_or_insert(self.report_at_us);
        if self.mode == Mode::Running {
            for shard in lease::plan(&self.report, &self.config.owner).hand_over {
                if let Some(Owned { phase: Phase::Running(p), .. }) = self.shards.get_mut(&shard)
                    && !p.draining
                {
                    p.draining = true;
                    self.commands.push_back(Command::Event(Event::HandingOver { shard }));
                }
            }
        }
    }

    /// Which destinations a message goes to is decided by the instance that moves it: they had better agree.
    fn compare_configurations(&mut self, now: Now, report: &LeaseReport) {
        let differs = |i: &&lease::InstanceRow| !i.draining && !i.config.is_empty() && i.config != self.digest;
        let owners: Vec<String> = report.instances.iter().filter(differs).map(|i| i.owner.clone()).collect();
        let again = !owners.is_empty() && now.mono_us >= self.others_told_at_us.saturating_add(OTHERS_AGAIN_MS * 1_000);
        if owners != self.other_configurations || again {
            self.others_told_at_us = now.mono_us;
            self.other_configurations.clone_from(&owners);
            self.commands.push_back(Command::Event(Event::OtherConfiguration { owners }));
        }
    }

    pub(super) fn fence(&mut self, shard: ShardId) {
        if let Some(owned) = self.shards.get(&shard) {
            self.commands.push_back(Command::Event(Event::Fenced { shard, epoch: owned.epoch }));
        }
        self.forget(shard);
    }

    /// Gives up a shard with all that was held of it.
    pub(super) fn forget(&mut self, shard: ShardId) {
        self.refusals.forget(shard);
        self.schedule.forget(shard);
        if let Some(Owned { phase: Phase::Running(p), .. }) = self.shards.remove(&shard) {
            self.intake.forget(p.unmoved_seqs());
        }
    }

    fn releasable(&self) -> Vec<(ShardId, Epoch)> {
        let left = self.config.faults.has(Fault::DueLeftBehind);
        let drained = |(s, p): &(ShardId, &Pipeline)| p.is_drained() && (left || !self.schedule.has_asked_of(*s));
        let drained = self.pipelines().filter(drained).map(|(s, p)| (s, p.epoch));
        let idle = self.shards.iter().filter(|(_, o)| match o.phase {
            Phase::Recovering { under_way, .. } => self.mode != Mode::Running && !under_way,
            Phase::LetGo => true,
            Phase::Running(_) => false,
        });
        drained.chain(idle.map(|(s, o)| (*s, o.epoch))).collect()
    }

    pub(super) fn drive_leases(&mut self, now: Now) {
        if self.leases.under_way || matches!(self.mode, Mode::Leaving | Mode::Stopped) {
            return;
        }
        let release = self.releasable();
        let plan = if self.mode == Mode::Running {
            lease::plan(&self.report, &self.config.owner)
        } else {
            lease::LeasePlan::default()
        };
        let leave = self.mode == Mode::Draining && release.len() == self.shards.len() && self.checkpoint.is_none();
        let soon = leave || !release.is_empty() || !plan.acquire.is_empty();
        let spaced = self.leases.began_at_us.saturating_add(LEASE_SPACING_MS * 1_000);
        if now.mono_us < self.leases.next_at_us && !(soon && self.leases.failures == 0 && now.mono_us >= spaced) {
            return;
        }
        let renew =
            self.shards.iter().map(|(s, o)| (*s, o.epoch)).filter(|(s, e)| !release.contains(&(*s, *e))).collect();
        self.releasing.clone_from(&release);
        self.leases.under_way = true;
        self.leases.began_at_us = now.mono_us;
        self.leases.next_at_us = now.after_ms(self.config.settings.lease_interval_ms);
        if leave {
            self.mode = Mode::Leaving;
        }
        self.commands.push_back(Command::LeaseRound {
            renew,
            release,
            acquire: plan.acquire,
            draining: self.mode != Mode::Running,
            leave,
            troubles: self.troubles(),
        });
    }

    fn stop(&mut self) {
        self.mode = Mode::Stopped;
        let shards: Vec<ShardId> = self.shards.keys().copied().collect();
        for shard in shards {
            self.forget(shard);
            self.commands.push_back(Command::Event(Event::Released { shard }));
        }
        self.commands.push_back(Command::Stopped);
    }
}
