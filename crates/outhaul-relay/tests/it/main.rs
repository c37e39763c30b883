//! The engine against real servers: kills, pauses, cut connections, two owners.

mod child;
mod collector;
mod kill;
mod scene;
mod writers;
