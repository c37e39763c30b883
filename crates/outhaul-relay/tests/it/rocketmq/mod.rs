//! RocketMQ from end to end: rows from MariaDB, relays as processes of their own, real brokers of 4.9.4, and a reader that
//! compares what they hold with what was committed. 118,402 rows in the soak, fewer here.
//!
//! A message may stand twice for each of these reasons, and for no other: its send was not answered (the relay process
//! notes that), or a relay was killed before it was settled in the database (known by the time that the message carries).

mod busy;
mod cluster;
mod cut_connections;
mod dead_queue;
mod forgotten;
mod killed_brokers;
mod killed_relays;
mod no_name_server;
mod noted;
mod reader;
mod stage;
mod without_faults;

pub use noted::NotedSink;
pub use reader::Reader;
