//! No seed of any scenario may break a rule.

use outhaul_testkit::simulator::{Scenario, Summary, run, search};

/// Seeds of each scenario.
const SEEDS: u64 = 200;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn holds(scenario: &Scenario) -> Summary {
    let (first, count) = match (number("OUTHAUL_SEED"), number("OUTHAUL_SOAK")) {
        (Some(seed), _) => (seed, 1),
        (None, Some(1)) => (0, SEEDS * 50),
        (None, _) => (0, SEEDS),
    };
    let sum = search(scenario, first, count, None).unwrap_or_else(|failure| panic!("\n{failure}"));
    eprintln!("{}: {count} seeds from {first}, {sum:?}", scenario.name);
    sum
}

#[test]
fn d1_calm() {
    assert_eq!(holds(&Scenario::CALM).duplicates, 0);
}

#[test]
fn transactions() {
    holds(&Scenario::TRANSACTIONS);
}

#[test]
fn database() {
    holds(&Scenario::DATABASE);
}

#[test]
fn destinations() {
    holds(&Scenario::DESTINATIONS);
}

#[test]
fn forgetful() {
    holds(&Scenario::FORGETFUL);
}

#[test]
fn owners() {
    holds(&Scenario::OWNERS);
}

#[test]
fn handovers() {
    holds(&Scenario::HANDOVERS);
}

#[test]
fn everything() {
    holds(&Scenario::EVERYTHING);
}

#[test]
fn reconfigured() {
    holds(&Scenario::RECONFIGURED);
}

#[test]
fn until_empty() {
    holds(&Scenario::UNTIL_EMPTY);
}

#[test]
fn b5_truncated() {
    holds(&Scenario::TRUNCATED);
}

#[test]
fn b7_restored() {
    holds(&Scenario::RESTORED);
}

#[test]
fn s5_acts() {
    holds(&Scenario::ACTS);
}

#[test]
fn s5_acts_reconfigured() {
    holds(&Scenario::ACTS_RECONFIGURED);
}

#[test]
fn dropped() {
    holds(&Scenario::DROPPED);
}

#[test]
fn s5_acts_forgotten() {
    holds(&Scenario::ACTS_FORGOTTEN);
}

#[test]
fn s5_acts_alone() {
    holds(&Scenario::ACTS_ALONE);
}

#[test]
fn scheduled() {
    holds(&Scenario::SCHEDULED);
}

#[test]
fn scheduled_calm() {
    assert_eq!(holds(&Scenario::SCHEDULED_CALM).duplicates, 0);
}

#[test]
fn scheduled_handovers() {
    assert_eq!(holds(&Scenario::SCHEDULED_HANDOVERS).duplicates, 0);
}

#[test]
fn limited() {
    holds(&Scenario::LIMITED);
}

#[test]
fn limited_until_empty() {
    holds(&Scenario::LIMITED_UNTIL_EMPTY);
}

#[test]
fn replays() {
    holds(&Scenario::REPLAYS);
}

#[test]
fn resharded() {
    holds(&Scenario::RESHARDED);
}

#[test]
fn a_seed_gives_the_same_run_every_time() {
    for seed in 0..20 {
        let once = run(&Scenario::EVERYTHING, seed, None).unwrap_or_else(|failure| panic!("\n{failure}"));
        assert_eq!(Ok(once), run(&Scenario::EVERYTHING, seed, None).map_err(|failure| failure.what));
    }
}
