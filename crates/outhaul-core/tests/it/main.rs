//! Behaviours of the core that are easy to get wrong, one by one. What holds in any order of events is the simulator's.

mod bench;
mod intake;
mod lane;
mod lease;
