//! The demo without the command line around it: `outhaul demo` is the same.

use std::process::ExitCode;

use clap::Parser;

/// Kills an order service and a relay again and again, and counts what arrived.
#[derive(Debug, Parser)]
#[command(name = "outhaul-demo", version)]
struct Arguments {
    #[command(flatten)]
    options: outhaul_demo::Options,
    /// Print the numbers as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    if args.next().as_deref() == Some(outhaul_demo::PART_COMMAND) {
        return outhaul_demo::part(args.collect());
    }
    let mut arguments = Arguments::parse();
    if arguments.options.relay_binary.is_none() {
        arguments.options.relay_binary = std::env::current_exe().ok().map(|this| this.with_file_name("outhaul"));
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(outhaul_demo::run(arguments.options)) {
        Ok(outcome) => {
            if arguments.json {
                match serde_json::to_string_pretty(&outcome) {
                    Ok(json) => println!("{json}"),
                    Err(error) => eprintln!("{error}"),
                }
            } else {
                println!("{outcome}");
            }
            if outcome.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
