//! The subcommands, one file each.

mod act;
mod acts;
mod audit;
mod cancel;
mod checkback;
mod contract;
#[cfg(feature = "sqlite")]
mod demo;
mod destination;
mod enqueue;
mod explain;
mod handler_sql;
mod health;
mod health_file;
mod inbox;
mod init;
mod locate;
mod message_line;
mod migrate;
mod parked;
mod pause;
mod prune;
mod reconcile;
mod relay;
mod replay;
mod reshard;
mod search;
mod shared_sink;
mod status;
mod validate;
mod validate_inbox;

use std::sync::Arc;

use clap::CommandFactory;
use outhaul_core::act::Verb;
use outhaul_store::Store;

use crate::arguments::{Arguments, Command};
use crate::config::{Config, Outbox};
use crate::failure::{Exit, Failure, Outcome};
use crate::{config, output};

/// Runs what the command line says.
///
/// # Errors
/// Why it was not done.
pub async fn run(arguments: &Arguments) -> Outcome {
    let json = arguments.global.json;
    match &arguments.command {
        Command::Init(a) => init::run(a, json).await,
        Command::Relay(a) => Box::pin(relay::run(a)).await,
        Command::Validate(a) => Box::pin(validate::run(a, json)).await,
        Command::Status(a) => status::run(a, json).await,
        Command::Health(a) => health::run(a, json),
        Command::Enqueue(a) => Box::pin(enqueue::run(a, json)).await,
        Command::Audit(a) => Box::pin(audit::run(a, json)).await,
        Command::Parked(a) => Box::pin(parked::run(a, json)).await,
        Command::Pause(a) => pause::run(a, Verb::Pause, json).await,
        Command::Resume(a) => pause::run(a, Verb::Resume, json).await,
        Command::Destination(a) => destination::run(a, json).await,
        Command::Cancel(a) => cancel::run(a, json).await,
        Command::Checkback(a) => Box::pin(checkback::run(a, json)).await,
        Command::Inbox(a) => Box::pin(inbox::run(a, json)).await,
        Command::Reconcile(a) => Box::pin(reconcile::run(a, json)).await,
        Command::Replay(a) => Box::pin(replay::run(a, json)).await,
        Command::Acts(a) => acts::run(a, json).await,
        Command::Prune(a) => prune::run(a, json).await,
        Command::Reshard(a) => Box::pin(reshard::run(a, json)).await,
        Command::Migrate(a) => migrate::run(a, json).await,
        Command::Contract(a) => contract::run(a, json).await,
        Command::Explain(a) => explain::run(a, json),
        Command::Completions { shell } => completions(*shell),
        Command::Reference { metrics } => {
            let page = if *metrics { crate::admin::metrics_page() } else { config::reference::page() };
            output::lines(page.lines())?;
            Ok(Exit::Fine)
        }
        #[cfg(feature = "sqlite")]
        Command::Demo(a) => Box::pin(demo::run(a, json)).await,
    }
}

fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Arguments::command(), "outhaul", &mut script);
    output::lines(String::from_utf8_lossy(&script).lines())?;
    Ok(Exit::Fine)
}

/// Opens the database of an outbox, whatever its tables are.
async fn open_as_it_is(outbox: &Outbox) -> Result<Arc<dyn Store>, Failure> {
    outhaul_store::open(outbox.store.clone()).await.map_err(|e| of_outbox(e.into(), outbox))
}

/// Opens the database of an outbox whose tables, if there are any, are of this version.
async fn open(outbox: &Outbox) -> Result<Arc<dyn Store>, Failure> {
    let store = open_as_it_is(outbox).await?;
    match store.check_version().await {
        Ok(_) => Ok(store),
        Err(e) => {
            store.close().await;
            Err(of_outbox(e.into(), outbox))
        }
    }
}

/// A failure with the outbox's name in front.
fn of_outbox(failure: Failure, outbox: &Outbox) -> Failure {
    failure.while_doing(format_args!("outbox {}", outbox.name))
}

/// The outboxes that a command is about: all, or the one that was named.
fn chosen<'a>(config: &'a Config, name: Option<&str>) -> Result<Vec<&'a Outbox>, Failure> {
    if name.is_some() { config.outbox(name).map(|o| vec![o]) } else { Ok(config.outboxes.iter().collect()) }
}

/// A name of this process for leases that it takes: not that of any other process, also a restarted one.
fn owner(instance: Option<&str>) -> String {
    let instance = instance.map_or_else(host, str::to_owned);
    let process = uuid::Uuid::new_v4().simple().to_string();
    format!("{instance}#{}-{}", std::process::id(), process.get(..6).unwrap_or_default())
}

fn host() -> String {
    let named = std::fs::read_to_string("/proc/sys/kernel/hostname").ok().or_else(|| std::env::var("HOSTNAME").ok());
    named.map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).unwrap_or_else(|| "outhaul".into())
}
