//! What the database does for a replay.

use std::collections::BTreeSet;
use std::sync::Arc;

use outhaul_core::act::ActState;
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::replay::{Input, Page, Progress, Selection};
use outhaul_core::route::Routes;

use super::{Call, Step};
use crate::simulator::database::ActRow;
use crate::simulator::ledger::number_of;
use crate::simulator::process::Life;
use crate::simulator::scenario::MS;
use crate::simulator::world::{Event, World};

impl World {
    pub(super) fn selection(&self, place: usize, shard: ShardId) -> Selection {
        let ordered = &self.replays.ordered[place];
        let range = ordered.ranges.get(&shard).copied().unwrap_or_default();
        let routes = Arc::new(Routes::new(self.limits.routes.clone()));
        Selection::new(range, &ordered.selector, ordered.destination, routes)
    }

    pub(super) fn runner_calls(&mut self, runner: usize, ticket: u64, call: Call) -> Result<(), String> {
        let outlives = matches!(call, Call::Keep(_)) && self.dice.chance(500);
        if self.replays.runners[runner].life == Life::Killed && !outlives {
            return Ok(());
        }
        let mut delay = self.way_us();
        if self.db_is_away() {
            self.runner_answer_after(delay, runner, ticket, call.failed());
            return Ok(());
        }
        if self.dice.chance(self.scenario.database.failure) {
            self.runner_answer_after(delay, runner, ticket, call.failed());
            let Call::Keep(progress) = call else { return Ok(()) };
            match self.dice.between((0, 2)) {
                0 => drop(self.keep(runner, &progress)?),
                1 => {
                    let late = self.dice.between((MS, 800 * MS));
                    self.after(late, Event::Replay(Step::Late { runner, progress }));
                }
                _ => {}
            }
            return Ok(());
        }
        if self.dice.chance(self.scenario.database.slow) {
            delay = self.dice.between((20 * MS, 700 * MS));
        }
        let input = match call {
            Call::Read(shard, from) => Input::Page(Ok(self.page(runner, shard, from))),
            Call::Keep(progress) => Input::Kept(Ok(self.keep(runner, &progress)?)),
        };
        self.runner_answer_after(delay, runner, ticket, input);
        Ok(())
    }

    fn page(&mut self, runner: usize, shard: ShardId, from: Position) -> Page {
        let place = self.replays.runners[runner].place;
        let selection = self.selection(place, shard);
        let name = self.limits.destinations[usize::from(self.replays.ordered[place].destination.0)].name.clone();
        let most = self.dice.between((1, 20)) as usize;
        let to = selection.range().to;
        let mut messages = self.db.read_log(shard, from, most);
        messages.retain(|m| m.position < to);
        let next = messages.last().map_or(to, |m| Position(m.position.0 + 1));
        let mut page = Page { next, ..Page::default() };
        self.db.apply_edits(shard, &name, &mut messages);
        messages.retain(|m| selection.is_meant(m, Position(0)));
        let parked = |of: &str| {
            let rows = self.db.shard(shard).parked.keys().filter(|(destination, _)| destination == of);
            rows.map(|(_, position)| *position).collect::<BTreeSet<_>>()
        };
        Selection::set_aside(messages, &parked(&name), &parked(NO_ROUTE), &mut page);
        // Whoever has read it may be killed before it says so.
        self.replays.ordered[place].left.extend(page.left.iter().filter_map(|l| number_of(&l.id)));
        page
    }

    /// Stores how far a replay has got.
    pub(super) fn keep(&mut self, runner: usize, progress: &Progress) -> Result<bool, String> {
        let r = &self.replays.runners[runner];
        let (place, name) = (r.place, r.name.clone());
        let number = self.replays.ordered[place].number;
        let is_its_own = self.replays.ordered[place].runner.as_ref() == Some(&name);
        let is_row = |r: &&ActRow| r.act.number == number && r.act.shard == progress.shard;
        let was_over = self.db.acts.iter().find(is_row).is_some_and(|r| r.state == ActState::Done);
        let kept = self.db.keep_replay(number, &name, progress);
        self.note(|| format!("{name} stores {progress:?} of replay {number}: {kept}"));
        // The same end may be stored twice.
        if kept && !is_its_own && !was_over {
            return Err(format!("{name} stores how far replay {number} has got, which another has taken over"));
        }
        if kept {
            self.check_kept(place, progress)?;
        }
        Ok(kept)
    }
}
