//! The numbers of relays as a page.

use std::sync::PoisonError;
use std::time::Duration;

use outhaul_core::destination::NO_ROUTE;
use outhaul_core::instance::ShardView;
use outhaul_metrics::Page;
use outhaul_store::ShardStatus;

use super::counts::{OUTCOMES, READS};
use super::families as f;
use super::{Told, Watch};

impl Watch {
    /// Writes all that this outbox's relay has counted and was last told.
    pub fn write(&self, page: &mut Page) {
        let (outbox, counts) = (self.0.outbox.as_str(), self.counts());
        let stalls = self.standing().stalls;
        page.count(&f::READY, &[outbox], u64::from(stalls.is_empty()));
        for stall in &stalls {
            page.put(&f::STALLED, &[outbox, &stall.part], stall.age.as_secs_f64());
        }
        for (task, n) in counts.lost.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            page.count(&f::TASKS_LOST, &[outbox, task], *n);
        }
        for ((call, code), n) in counts.errors.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            page.count(&f::DATABASE_ERRORS, &[outbox, call, code], *n);
        }
        for (event, n) in counts.events.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            page.count(&f::EVENTS, &[outbox, event], *n);
        }
        page.count(&f::NO_ROUTE, &[outbox], counts.no_route.get());
        page.count(&f::REPEATED, &[outbox], counts.repeated.get());
        for (kind, counter) in READS.iter().zip(&counts.reads) {
            page.count(&f::READS, &[outbox, kind], counter.get());
        }
        page.count(&f::ROWS_READ, &[outbox], counts.rows_read.get());
        page.count(&f::MOVED, &[outbox], counts.moved.get());
        page.count(&f::MOVED_BYTES, &[outbox], counts.moved_bytes.get());
        page.count(&f::PRUNED, &[outbox], counts.pruned.get());
        page.histogram(&f::CHECKPOINT_SECONDS, &[outbox], &counts.checkpoint_seconds);
        page.histogram(&f::CHECKPOINT_MESSAGES, &[outbox], &counts.checkpoint_messages);
        page.histogram(&f::READ_WAIT, &[outbox], &counts.read_wait);
        self.write_destinations(page);
        let told = self.told();
        for shard in &told.shards {
            self.write_shard(page, &told, shard);
        }
        drop(told);
        self.write_sample(page);
    }

    fn write_destinations(&self, page: &mut Page) {
        let outbox = self.0.outbox.as_str();
        let down: Vec<bool> = self.told().work.down.iter().map(Option::is_some).collect();
        for (at, (name, d)) in self.0.destinations.iter().zip(&self.counts().destinations).enumerate() {
            let labels = [outbox, name.as_str()];
            let level = d.level();
            let up = level.is_some() && !down.get(at).copied().unwrap_or(true);
            page.count(&f::DESTINATION_UP, &labels, u64::from(up));
            if let Some(level) = level {
                page.count(&f::ACK_LEVEL, &[outbox, name, level.as_str()], 1);
            }
            for (outcome, counter) in OUTCOMES.iter().zip(&d.outcomes) {
                page.count(&f::ATTEMPTS, &[outbox, name, outcome], counter.get());
            }
            page.count(&f::FORGOTTEN, &labels, d.forgotten.get());
            page.count(&f::DEAD, &labels, d.dead.get());
            page.histogram(&f::SEND_SECONDS, &labels, &d.send);
            page.histogram(&f::READ_TO_ACK, &labels, &d.read_to_ack);
            page.histogram(&f::COMMIT_TO_ACK, &labels, &d.commit_to_ack);
        }
    }

    fn write_shard(&self, page: &mut Page, told: &Told, s: &ShardView) {
        let (outbox, shard) = (self.0.outbox.as_str(), s.shard.to_string());
        let labels = [outbox, shard.as_str()];
        let state = match (s.running, s.draining) {
            (false, _) => "recovering",
            (true, true) => "draining",
            (true, false) => "running",
        };
        page.count(&f::LEASE_STATE, &[outbox, &shard, state], 1);
        let elapsed = told.at.elapsed();
        let left = Duration::from_micros(s.lease_until_us.saturating_sub(told.mono_us)).saturating_sub(elapsed);
        page.put(&f::LEASE_LEFT, &labels, left.as_secs_f64());
        page.count(&f::LEASE_EPOCH, &labels, s.epoch.0);
        if !s.running {
            return;
        }
        page.count(&f::LOG_END, &labels, s.log_end.0);
        page.count(&f::UNMOVED_ROWS, &labels, s.unmoved_rows as u64);
        page.count(&f::MEMORY, &labels, s.memory_bytes as u64);
        for lane in &s.lanes {
            let at = usize::from(lane.destination.0);
            let Some(name) = self.0.destinations.get(at) else { continue };
            let labels = [outbox, shard.as_str(), name.as_str()];
            page.count(&f::LAG, &labels, lane.unsettled);
            let oldest = match lane.oldest_at_us {
                _ if lane.unsettled == 0 => 0.0,
                Some(at_us) => micros(told.wall_us.saturating_sub(at_us)).saturating_add(elapsed).as_secs_f64(),
                None => self.sampled_age(s, name).as_secs_f64(),
            };
            page.put(&f::OLDEST_UNSENT, &labels, oldest);
            let parked =
                [("retrying", lane.parked.retrying), ("waiting", lane.parked.waiting), ("dead", lane.parked.dead)];
            for (state, n) in parked {
                page.count(&f::PARKED, &[outbox, &shard, name, state], n);
            }
            let down = told.work.down.get(at).is_some_and(Option::is_some) || lane.trouble.is_some();
            page.count(&f::BREAKER, &labels, u64::from(down));
            page.count(&f::SLOTS_DOWN, &labels, lane.slots_down as u64);
            page.count(&f::PAUSED, &labels, u64::from(lane.paused));
            page.count(&f::IN_FLIGHT, &labels, lane.in_flight as u64);
            page.count(&f::UNPROVEN, &labels, lane.unproven as u64);
            page.count(&f::UNHEALED, &labels, lane.forgotten);
        }
    }

    /// Of a lane that lags so far that memory does not have its oldest message: as old as it was at the last look, and the
    /// time since.
    fn sampled_age(&self, s: &ShardView, destination: &str) -> Duration {
        let sample = self.0.sample.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sample) = sample.as_ref() else { return Duration::ZERO };
        let of_shard = sample.shards.iter().find(|found| found.shard == s.shard);
        let age = of_shard.and_then(|found| found.oldest_unsent_ms.iter().find(|(name, _)| name == destination));
        age.map_or(Duration::ZERO, |(_, ms)| Duration::from_millis(*ms).saturating_add(sample.at.elapsed()))
    }

    fn write_sample(&self, page: &mut Page) {
        let outbox = self.0.outbox.as_str();
        let sample = self.0.sample.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(sample) = sample.as_ref() else { return };
        for s in &sample.shards {
            let shard = s.shard.to_string();
            let labels = [outbox, shard.as_str()];
            page.count(&f::HOT_ROWS, &labels, s.hot_rows);
            page.put(
                &f::HOT_OLDEST,
                &labels,
                s.oldest_hot_ms.map_or(0.0, |ms| Duration::from_millis(ms).as_secs_f64()),
            );
            page.count(&f::SCHEDULED_ROWS, &labels, s.scheduled_rows);
            if let Some(start) = sample.log_starts.get(&s.shard) {
                page.count(&f::LOG_MESSAGES, &labels, s.log_end.0.saturating_sub(start.0));
            }
            for (state, n) in without_route(s) {
                page.count(&f::PARKED, &[outbox, &shard, NO_ROUTE, state], n);
            }
        }
    }
}

fn without_route(s: &ShardStatus) -> [(&'static str, u64); 3] {
    let found = s.parked.iter().find(|(name, ..)| name == NO_ROUTE);
    let (retrying, waiting, dead) = found.map_or((0, 0, 0), |(_, r, w, d)| (*r, *w, *d));
    [("retrying", retrying), ("waiting", waiting), ("dead", dead)]
}

fn micros(us: i64) -> Duration {
    Duration::from_micros(u64::try_from(us).unwrap_or(0))
}
