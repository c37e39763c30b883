//! Every run of the small model of transactional messages.

use outhaul_testkit::transaction_model::{Mistake, search};

#[test]
fn no_run_is_misjudged_or_lost() {
    let found = search(None);
    assert!(found.wrong.is_none(), "{found:#?}");
    println!("{} states, {} ends", found.states, found.ends);
    assert!(found.states > 2_000 && found.ends > 100, "the model has become too small: {found:?}");
}

#[test]
fn every_mistake_is_found() {
    for mistake in Mistake::ALL {
        let found = search(Some(mistake));
        let Some((wrong, run)) = found.wrong else { panic!("{mistake:?} is not found in {} states", found.states) };
        println!("{mistake:?}: {wrong}: {}", run.join("; "));
    }
}
