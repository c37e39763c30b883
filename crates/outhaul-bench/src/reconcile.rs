//! `reconcile`: the difference of two sides of many ids, beside a `HashSet` in memory; each in a process of its own.

use std::collections::HashSet;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use outhaul_reconcile::{Counts, Record, Side, compare, judge};

use crate::measure::{peak_rss_kib, used};

/// Of so many ids one is missing.
const MISSING_EVERY: u64 = 471;

/// How it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// Sorted runs in temporary files, and a merge.
    Outhaul,
    /// All expected ids in a `HashSet`, from which the actual ones are taken.
    HashSet,
}

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Ids of each side.
    #[arg(long, default_value_t = 10_000_000)]
    ids: u64,
    /// Memory of the comparison, MiB.
    #[arg(long, default_value_t = 64)]
    memory_mib: usize,
    /// One of them, in this process.
    #[arg(long, hide = true)]
    way: Option<Way>,
}

/// Runs it.
pub fn run(arguments: &Arguments) {
    if let Some(way) = arguments.way {
        return one(way, arguments);
    }
    println!("{} ids a side, {} MiB for the comparison", arguments.ids, arguments.memory_mib);
    let mut figures = vec![];
    for (way, name) in [(Way::HashSet, "hash-set"), (Way::Outhaul, "outhaul")] {
        let program = std::env::current_exe().expect("this program");
        let (ids, memory) = (arguments.ids.to_string(), arguments.memory_mib.to_string());
        let call = ["reconcile", "--ids", &ids, "--memory-mib", &memory, "--way", name];
        let output = Command::new(program).args(call).output().expect("a child");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{way:?}: {}", String::from_utf8_lossy(&output.stderr));
        let numbers: Vec<f64> = printed.split_whitespace().map(|n| n.parse().expect("a number")).collect();
        let [missing, seconds, cpu, rss_mib] = numbers[..] else { panic!("{printed}") };
        let rate = 2.0 * arguments.ids as f64 / seconds;
        println!(
            "{name:<9} {missing:>8} missing  {seconds:>7.2} s  CPU {cpu:>7.2} s  {rate:>9.0} ids/s  peak RSS {rss_mib:>7.1} MiB"
        );
        figures.push((missing, seconds, rss_mib));
    }
    let [(known, fast, large), (found, slow, small)] = figures[..] else { return };
    assert!((known - found).abs() < 0.5, "both find the same");
    println!("ratio: {:.1} times as long, {:.3} of the memory", slow / fast, small / large);
}

/// As a UUIDv4 looks: 36 characters without order.
fn id(n: u64) -> String {
    let mix = |x: u64| (x ^ (x >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (a, b) = (mix(n + 1), mix(mix(n + 1)));
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xFFFF,
        a & 0xFFF,
        b >> 48,
        b & 0xFFFF_FFFF_FFFF
    )
}

fn actual(ids: u64) -> impl Iterator<Item = u64> {
    // In another order than the expected side.
    (0..ids).rev().filter(|n| n % MISSING_EVERY != 3)
}

fn one(way: Way, arguments: &Arguments) {
    let begun = Instant::now();
    let missing = match way {
        Way::HashSet => {
            let mut expected: HashSet<String> = (0..arguments.ids).map(id).collect();
            for n in actual(arguments.ids) {
                expected.remove(&id(n));
            }
            expected.len() as u64
        }
        Way::Outhaul => by_runs(arguments).expect("temporary files"),
    };
    let took: Duration = begun.elapsed();
    let (cpu, peak) = (used(std::process::id()).cpu, peak_rss_kib(std::process::id()));
    println!("{missing} {:.3} {:.3} {:.1}", took.as_secs_f64(), cpu.as_secs_f64(), peak as f64 / 1024.0);
}

fn by_runs(arguments: &Arguments) -> std::io::Result<u64> {
    let memory = arguments.memory_mib << 20;
    let side = || Side::new(&std::env::temp_dir(), memory);
    let mut expected = side();
    for n in 0..arguments.ids {
        expected.push(&Record::new(id(n), Some(n as i64)))?;
    }
    let expected = expected.finish()?;
    let mut there = side();
    for n in actual(arguments.ids) {
        there.push(&Record::new(id(n), None))?;
    }
    let there = there.finish()?;
    let mut counts = Counts::default();
    compare(&expected, &there, memory, |group| {
        counts.add(judge(&group));
        Ok::<_, std::io::Error>(())
    })?;
    Ok(counts.missing)
}
