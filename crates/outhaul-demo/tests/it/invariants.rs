//! What the numbers must be, whatever the kills hit.

use outhaul_demo::{Numbers, Options, Outcome, Strategy, run};

use super::{outhaul, short};

async fn shown(options: Options) -> (Numbers, Outcome) {
    let folder = options.dir.clone().expect("a folder");
    let outcome = run(options).await.expect("a demo");
    assert!(!folder.exists(), "the folder must be gone");
    let [numbers] = outcome.runs.as_slice() else { panic!("one run: {outcome:?}") };
    (numbers.clone(), outcome)
}

fn assert_sound(numbers: &Numbers) {
    assert!(numbers.orders_committed > 0, "{numbers:?}");
    for d in &numbers.downstream {
        assert_eq!(d.received + d.missing, numbers.orders_committed, "{numbers:?}");
        assert_eq!((d.phantom, d.duplicates_applied), (0, 0), "{numbers:?}");
        assert_eq!(d.applied, d.received, "{numbers:?}");
        assert!(d.amounts_agree, "{numbers:?}");
    }
    assert_eq!(numbers.latency.map(|l| l.count > 0), Some(true), "{numbers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commit_then_send_loses_what_its_kills_explain() {
    let (numbers, outcome) = shown(Options { only: Some(Strategy::CommitThenSend), ..short("loses") }).await;
    assert_sound(&numbers);
    assert_eq!((numbers.service_kills, numbers.relay_kills), (3, 0));
    let cut = numbers.cut.as_ref().expect("an inquest");
    assert_eq!(cut.unexplained, 0, "{numbers:?}");
    assert_eq!(cut.explained, numbers.missing_deliveries, "{numbers:?}");
    assert!(cut.kills <= 3 && numbers.missing_orders <= cut.orders, "{numbers:?}");
    assert!(numbers.downstream.iter().all(|d| d.duplicates_received == 0), "{numbers:?}");
    assert!(outcome.holds());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outhaul_loses_nothing_and_nothing_is_applied_twice() {
    let options = Options { only: Some(Strategy::Outhaul), relay_binary: Some(outhaul()), ..short("keeps") };
    let (numbers, outcome) = shown(options).await;
    assert_sound(&numbers);
    // The relay is killed once more when the load is over.
    assert_eq!((numbers.service_kills, numbers.relay_kills), (3, 4));
    assert_eq!((numbers.missing_orders, numbers.missing_deliveries), (0, 0), "{numbers:?}");
    assert!(numbers.cut.is_none());
    assert!(outcome.holds());
    let table = outcome.to_string();
    assert!(table.contains("with Outhaul") && table.contains("outhaul relay --db"), "{table}");
    let json = serde_json::to_value(&outcome).expect("JSON");
    assert_eq!(json["runs"][0]["missing_deliveries"], 0);
}
