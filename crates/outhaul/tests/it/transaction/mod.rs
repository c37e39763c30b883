//! Transactional messages, against real brokers that ask after two seconds instead of a minute.

mod fire;
mod judged;
mod killed_servers;
mod naive;
mod sending;
mod stage;
mod worker;
