//! The rules of a destination that has limits: no window has more than its rate and a burst, no more batches are under
//! way than allowed, and no lane is left out while others go on.

use outhaul_core::lane::{LaneView, SendBatch};

use super::scenario::SECOND;
use super::world::{Lane, World};

/// What was not used may be made up for within this long, microseconds, and by one message more.
const BURST_US: u64 = 100_000;
/// A message, in the unit of the meters: microseconds times messages in a thousand seconds.
const MESSAGE: u64 = 1_000_000_000;
/// A lane is left out if others begin more than so many batches in this time, and it has something and begins none.
const LEFT_OUT: (u32, u64) = (60, 3 * SECOND);

/// What was sent, less what the rate lets run out of it: no window has more than its rate and what is in it at most.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meter {
    level: u64,
    at: u64,
}

impl Meter {
    fn sent(&mut self, messages: usize, rate_milli: u64, now: u64) -> u64 {
        self.level = self.level.saturating_sub((now - self.at) * rate_milli) + messages as u64 * MESSAGE;
        self.at = now;
        self.level
    }
}

/// Since when a lane has something and begins nothing, and how many batches others have begun meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    since: u64,
    batches: u32,
}

impl World {
    /// A batch begins.
    pub(super) fn check_limits(&mut self, process: usize, lane: Lane, batch: &SendBatch) -> Result<(), String> {
        let config = &self.limits.destinations[usize::from(lane.destination.0)];
        let (rate, concurrency) = (config.limits.rate_milli, config.limits.concurrency);
        let (name, owner) = (config.name.clone(), self.processes[process].owner.clone());
        if rate.is_none() && concurrency.is_none() {
            return Ok(());
        }
        let under_way = self.processes[process].batches(lane.destination.0);
        if concurrency.is_some_and(|most| under_way > most) {
            return Err(format!("{owner} has {under_way} batches under way to {name}, allowed are {concurrency:?}"));
        }
        if let Some(rate) = rate {
            let (burst, now, n) = (MESSAGE + rate * BURST_US, self.now, batch.messages.len());
            let mut level = |of: Option<usize>| {
                self.meters.entry((of, lane.destination.0)).or_default().sent(n, rate, now) as f64 / burst as f64
            };
            let (own, all) = (level(Some(process)), level(None));
            if own > 1.0 {
                return Err(format!("{owner} is beyond the rate of {name}: {own:.2} of a burst"));
            }
            // Each may have a burst, in full where it had all the shards.
            if all > self.processes.len() as f64 {
                return Err(format!("all together are beyond the rate of {name}: {all:.2} bursts"));
            }
        }
        self.check_turns(process, lane)
    }

    fn check_turns(&mut self, process: usize, lane: Lane) -> Result<(), String> {
        let (d, now) = (lane.destination.0, self.now);
        let sink = &self.sinks[usize::from(d)];
        let is_calm = now > sink.down_until.max(sink.hangs_until) + 2 * SECOND && !self.processes[process].drains;
        for shard in self.processes[process].view() {
            let of = (process, d, shard.shard);
            let waits = |l: &LaneView| l.queued > 0 && l.in_flight == 0 && l.verified && l.slots_down == 0;
            let view = shard.lanes.iter().find(|l| l.destination == lane.destination);
            let name = &self.limits.destinations[usize::from(d)].name;
            let left_out = is_calm && shard.shard != lane.shard && view.is_some_and(waits);
            if !left_out || self.is_paused(shard.shard, name) {
                self.waiting.remove(&of);
                continue;
            }
            let w = self.waiting.entry(of).or_insert(Waiting { since: now, batches: 0 });
            w.batches += 1;
            if w.batches > LEFT_OUT.0 && now > w.since + LEFT_OUT.1 {
                let ms = (now - w.since) / 1_000;
                return Err(format!(
                    "the lane of shard {} to {name} is left out: {} batches of others within {ms} ms",
                    shard.shard, w.batches
                ));
            }
        }
        Ok(())
    }
}
