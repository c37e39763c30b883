//! Tables of an earlier version.

use std::sync::Arc;

use outhaul_store::{SCHEMA_LEVEL, StoreErrorKind, Upgrade};

use super::fixture::{AppRow, Fixture};
use crate::earlier;
use crate::servers::Flavour;

async fn with_prefix(flavour: Flavour, prefix: &str) -> Fixture {
    let f = Fixture::empty(flavour, |options| options.table_prefix = prefix.into()).await;
    f.database.execute(&earlier::tables(flavour).replace("outbox", &format!("{prefix}outbox"))).await;
    f
}

/// They are refused by everything that looks at them, until what is missing was added, under the names that they have.
pub async fn earlier_tables_are_brought_up(flavour: Flavour) {
    for prefix in ["", "other_"] {
        let f = with_prefix(flavour, prefix).await;
        for refused in
            [f.store.inspect().await.err(), f.store.check_version().await.err(), f.store.init(&f.plan).await.err()]
        {
            assert_eq!(refused.expect("an earlier version").kind, StoreErrorKind::Outdated);
        }
        let plan = f.store.upgrade_plan().await.expect("plan");
        assert_eq!((plan.from, plan.to), (1, SCHEMA_LEVEL));
        assert!(plan.statements.iter().all(|sql| sql.contains(&format!("{prefix}outbox_"))), "{plan:?}");
        assert_eq!(f.store.upgrade().await.expect("upgrade"), plan, "what was found missing");
        f.store.inspect().await.expect("inspect");
        let again = Upgrade { from: SCHEMA_LEVEL, to: SCHEMA_LEVEL, ..Upgrade::default() };
        assert_eq!(f.store.upgrade().await.expect("again"), again);
        // As an earlier relay writes it.
        let now = if flavour == Flavour::Sqlite { "1" } else { "CURRENT_TIMESTAMP" };
        let off = if flavour == Flavour::Postgres { "false" } else { "0" };
        let table = f.options.table("outbox_instance");
        let sql = format!("INSERT INTO {table} (owner, version, draining, heartbeat) VALUES ('o', '0', {off}, {now})");
        f.database.execute(&sql).await;
        assert_eq!(f.store.instances().await.expect("instances")[0].config, "");
    }
}

/// Nothing to bring up, and a later version, are said as such.
pub async fn only_earlier_tables_are_brought_up(flavour: Flavour) {
    let f = Fixture::empty(flavour, |_| {}).await;
    for refused in [f.store.upgrade_plan().await, f.store.upgrade().await] {
        assert_eq!(refused.expect_err("no tables").kind, StoreErrorKind::NotInitialised);
    }
    assert_eq!(f.store.check_version().await.expect("no tables"), None);
    f.store.init(&f.plan).await.expect("init");
    assert_eq!(f.store.upgrade().await.expect("nothing to do").statements, Vec::<String>::new());
    f.database.execute("UPDATE outbox_meta SET value = '7' WHERE name = 'schema_level'").await;
    f.store.inspect().await.expect("what a later build has added is no harm");
    f.database.execute("UPDATE outbox_meta SET value = '2' WHERE name = 'schema_version'").await;
    for refused in [f.store.upgrade().await.err(), f.store.inspect().await.err(), f.store.check_version().await.err()] {
        let refused = refused.expect("a later version");
        assert_eq!(refused.kind, StoreErrorKind::WrongSchema);
        assert!(refused.message.contains("newer build"), "{refused}");
    }
}

/// A lock that a relay holds is waited for, and no application waits meanwhile.
pub async fn an_upgrade_waits_for_relays(flavour: Flavour) {
    let f = with_prefix(flavour, "").await;
    let mut holder = f.database.session().await;
    holder.execute(if flavour == Flavour::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }).await;
    for table in ["outbox_instance", "outbox_parked"] {
        holder.execute(&format!("DELETE FROM {table} WHERE 1 = 0")).await;
    }
    let upgrading = {
        let store = Arc::clone(&f.store);
        tokio::spawn(async move { store.upgrade().await })
    };
    if f.writers_are_concurrent() {
        for n in 0..20 {
            f.insert(&[AppRow::nth(100 + n)]).await;
        }
    }
    holder.execute("COMMIT").await;
    upgrading.await.expect("no panic").expect("upgrade");
    f.store.inspect().await.expect("inspect");
}
