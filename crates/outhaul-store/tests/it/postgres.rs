//! PostgreSQL: the conformance suite, and what only PostgreSQL has.

mod adopted;
mod checkpoint;
mod pooler;
mod read;
mod resolved;
mod session;

use std::time::{Duration, Instant};

use outhaul_testkit::servers::Session;

mod suite {
    use outhaul_testkit::servers::Flavour;

    outhaul_testkit::store_suite!(Flavour::Postgres);
}

/// How long a condition that another process brings about may take before it counts as a failure.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// Asks the server until a query's first value is `t`.
async fn until(session: &mut Session, sql: &str) {
    let begin = Instant::now();
    while session.query_text(sql).await != "t" {
        assert!(begin.elapsed() < WAIT_LIMIT, "never came true: {sql}");
        tokio::task::yield_now().await;
    }
}
