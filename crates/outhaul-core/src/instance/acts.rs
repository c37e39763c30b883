//! Acts: looked for in the database for all shards together, carried out by the pipelines.

use super::{Command, Instance, Mode, Owned, Phase};
use crate::act::Act;
use crate::config::Now;
use crate::message::{Epoch, ShardId};

impl Instance {
    /// Open acts were read. Those of a shard that was acquired anew since are not for it: it has read its own.
    pub(super) fn on_acts(&mut self, now: Now, shards: &[(ShardId, Epoch)], acts: Option<Vec<Act>>) {
        self.acts.under_way = false;
        let Some(acts) = acts else {
            self.acts.failures += 1;
            let wait = self.jitter.backoff_ms(self.acts.failures, self.config.settings.store_backoff_ms);
            self.acts.next_at_us = now.after_ms(wait.max(self.config.settings.acts_ms));
            return;
        };
        self.acts.failures = 0;
        let mut events = Vec::new();
        let faults = self.config.faults;
        for act in acts {
            let Some((shard, epoch)) = shards.iter().copied().find(|(shard, _)| *shard == act.shard) else { continue };
            if let Some(p) = self.pipeline(shard, epoch).filter(|p| !p.draining) {
                p.take_act(act, faults, now, &mut events);
            }
        }
        self.tell(events);
    }

    pub(super) fn drive_acts(&mut self, now: Now) {
        let mut events = Vec::new();
        for (shard, owned) in &mut self.shards {
            let (shard, epoch) = (*shard, owned.epoch);
            let Phase::Running(p) = &mut owned.phase else { continue };
            if p.draining {
                continue;
            }
            let commands = &mut self.commands;
            p.work_acts(&self.config, now, &mut events, |f| {
                commands.push_back(Command::FindParked {
                    shard,
                    epoch,
                    act: f.act,
                    destination: f.destination,
                    selector: f.selector,
                    from: f.from,
                    limit: f.limit,
                    content: f.content,
                });
            });
        }
        self.tell(events);
        if self.mode == Mode::Running && !self.acts.under_way && now.mono_us >= self.acts.next_at_us {
            self.look_for_acts(now);
        }
    }

    fn look_for_acts(&mut self, now: Now) {
        let mut shards = Vec::new();
        for (shard, owned) in &mut self.shards {
            let Owned { epoch, phase: Phase::Running(p), .. } = owned else { continue };
            if !p.draining {
                p.look_for_acts();
                shards.push((*shard, *epoch));
            }
        }
        if !shards.is_empty() {
            self.acts.under_way = true;
            self.acts.next_at_us = now.after_ms(self.config.settings.acts_ms);
            self.commands.push_back(Command::ReadActs { shards });
        }
    }
}
