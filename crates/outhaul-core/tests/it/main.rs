//! Behaviours of the core that are easy to get wrong, one by one. What holds in any order of events is the simulator's.

// Clippy knows tests by their attribute; here everything is one.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod acts;
mod bench;
mod healing;
mod intake;
mod lane;
mod lease;
mod limits;
mod proof;
mod replay;
