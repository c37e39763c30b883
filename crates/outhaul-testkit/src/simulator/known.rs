//! Which destinations a process is configured with: perhaps not all, and in an order of its own.
//!
//! The rest of the simulator numbers destinations as the run does. Here commands, inputs and what a process shows are
//! translated, so that nothing in the core may rely on a destination's number staying what it was before a restart.

use std::sync::Arc;

use outhaul_core::config::DestinationConfig;
use outhaul_core::destination::{DestinationIndex, DestinationSet};
use outhaul_core::instance::{Command, Input, ShardView};
use outhaul_core::message::Message;
use outhaul_core::route::{Route, Routes};

use super::dice::Dice;
use super::scenario::Limits;

/// The destinations of a process, by its own index.
#[derive(Clone, Debug)]
pub(super) struct Known(Vec<DestinationIndex>);

impl Known {
    /// All of them, in the order of the run.
    pub(super) fn all(limits: &Limits) -> Self {
        Self((0..limits.destinations.len() as u8).map(DestinationIndex).collect())
    }

    /// In some order; `all` of them, or some.
    pub(super) fn draw(dice: &mut Dice, limits: &Limits, all: bool) -> Self {
        let Self(mut left) = Self::all(limits);
        let mut known = Vec::new();
        while !left.is_empty() {
            known.push(left.swap_remove(dice.place(left.len())));
        }
        if !all && dice.chance(500) {
            known.truncate(dice.between((1, known.len() as u64)) as usize);
        }
        Self(known)
    }

    pub(super) const fn len(&self) -> usize {
        self.0.len()
    }

    /// What the process is configured with.
    pub(super) fn config(&self, limits: &Limits) -> (Arc<[DestinationConfig]>, Routes) {
        let destinations = self.0.iter().map(|d| limits.destinations[usize::from(d.0)].clone()).collect();
        let routes = limits.routes.iter().map(|route| Route {
            pattern: route.pattern.clone(),
            to: route.to.iter().filter_map(|d| self.index(*d)).collect(),
        });
        (destinations, Routes::new(routes.collect()))
    }

    fn index(&self, destination: DestinationIndex) -> Option<DestinationIndex> {
        self.0.iter().position(|d| *d == destination).map(|n| DestinationIndex(n as u8))
    }

    fn of(&self, index: DestinationIndex) -> DestinationIndex {
        self.0[usize::from(index.0)]
    }

    /// A command of the process, with the numbers of the run.
    pub(super) fn outward(&self, mut command: Command) -> Command {
        if let Command::ReadLog { destination, .. }
        | Command::ReadParked { destination, .. }
        | Command::Start { destination, .. }
        | Command::Verify { destination, .. }
        | Command::Prove { destination, .. }
        | Command::Send { destination, .. } = &mut command
        {
            *destination = self.of(*destination);
        }
        command
    }

    /// An input for the process, with its own numbers.
    pub(super) fn inward(&self, mut input: Input) -> Input {
        if let Input::Log { destination, messages, .. } | Input::Parked { destination, messages, .. } = &mut input {
            *destination = self.index(*destination).unwrap_or_default();
            for message in messages.iter_mut().flatten() {
                *message = renamed(message, |d| self.index(d));
            }
        } else if let Input::FoundParked { found, .. } = &mut input {
            for message in found.iter_mut().flatten().filter_map(|f| f.message.as_mut()) {
                *message = renamed(message, |d| self.index(d));
            }
        } else if let Input::Answer { destination, .. }
        | Input::NotSent { destination, .. }
        | Input::Started { destination, .. }
        | Input::Verified { destination, .. }
        | Input::Proven { destination, .. } = &mut input
        {
            *destination = self.index(*destination).unwrap_or_default();
        }
        input
    }

    /// What the process shows, with the numbers of the run.
    pub(super) fn view(&self, mut view: Vec<ShardView>) -> Vec<ShardView> {
        view.iter_mut().flat_map(|s| &mut s.lanes).for_each(|lane| lane.destination = self.of(lane.destination));
        view
    }
}

/// A message whose destinations are called otherwise. Those without a name are left out.
pub(super) fn renamed(
    message: &Arc<Message>,
    name: impl Fn(DestinationIndex) -> Option<DestinationIndex>,
) -> Arc<Message> {
    let destinations: DestinationSet = message.destinations.iter().filter_map(name).collect();
    match destinations == message.destinations {
        true => message.clone(),
        false => Arc::new(Message { destinations, ..message.as_ref().clone() }),
    }
}
