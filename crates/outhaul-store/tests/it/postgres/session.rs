//! What a server may refuse, and how to come to it.

use outhaul_store::{InitPlan, StoreErrorKind, StoreOptions, Tls};
use outhaul_testkit::servers::{Flavour, OwnServer, Session};
use outhaul_testkit::store_suite::{AppRow, Fixture};

async fn open_error(options: StoreOptions) -> outhaul_store::StoreError {
    match outhaul_store::open(options).await {
        Ok(_) => panic!("it opened"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn what_is_wrong_with_the_connection_is_told_apart() {
    let f = Fixture::empty(Flavour::Postgres, |_| {}).await;
    let url = &f.database.url;
    for (url, kind) in [
        (f.database.url_as("outhaul", "wrong"), StoreErrorKind::Authentication),
        (f.database.url_as("nobody", "outhaul"), StoreErrorKind::Authentication),
        (format!("{url}x"), StoreErrorKind::Configuration),
        (f.database.url_at("127.0.0.1:1".parse().unwrap()), StoreErrorKind::Unavailable),
        (format!("{url}?sslmode=require"), StoreErrorKind::Configuration),
        (format!("{url}?nonsense=1"), StoreErrorKind::Configuration),
        ("postgres://127.0.0.1:notaport/x".to_owned(), StoreErrorKind::Configuration),
        ("postgres://127.0.0.1/x".to_owned(), StoreErrorKind::Configuration),
    ] {
        let error = open_error(StoreOptions::new(&url)).await;
        assert_eq!(error.kind, kind, "{url}: {error}");
        assert!(!error.to_string().contains("wrong") && !error.to_string().contains("outhaul:outhaul"), "{error}");
    }
    let error = f.store.inspect().await.unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::NotInitialised, "{error}");
    assert_eq!(f.store.read(&f.everything()).await.unwrap_err().kind, StoreErrorKind::NotInitialised);
}

#[tokio::test]
async fn a_read_only_server_is_met_as_such() {
    let f = Fixture::new(Flavour::Postgres).await;
    f.insert_series(0..2).await;
    let owner = f.owner("one").await;
    let checkpoint = owner.checkpoint(vec![owner.part(outhaul_core::message::ShardId(0), &f.read_all().await)]);
    let name = f.database.name();
    f.database.execute(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    assert_eq!(open_error(f.options.clone()).await.kind, StoreErrorKind::ReadOnly);
    // The setting is of new sessions: the first checkpoint of this store makes one.
    assert_eq!(f.store.checkpoint(&checkpoint).await.unwrap_err().kind, StoreErrorKind::ReadOnly);
    let mut session = f.database.session().await;
    session.execute("SET default_transaction_read_only = off").await;
    session.execute(&format!("ALTER DATABASE {name} RESET default_transaction_read_only")).await;
    assert!(f.store.checkpoint(&checkpoint).await.is_ok());
}

#[tokio::test]
async fn a_standby_is_met_as_such_and_so_is_one_that_a_connection_is_moved_to() {
    let server = OwnServer::start(Flavour::Postgres, &[]).await;
    let options = StoreOptions::new(server.url());
    let store = outhaul_store::open(options.clone()).await.unwrap();
    store.init(&InitPlan::default()).await.unwrap();
    let mut session = Session::open(Flavour::Postgres, server.url()).await.unwrap();
    let data = std::path::PathBuf::from(session.query_text("SHOW data_directory").await);
    server.stop().await;
    std::fs::write(data.join("standby.signal"), "").unwrap();
    server.restart().await;
    assert_eq!(open_error(options).await.kind, StoreErrorKind::ReadOnly);
    let request = outhaul_store::ReadRequest {
        purpose: outhaul_store::ReadPurpose::Poll,
        shards: vec![outhaul_core::message::ShardId(0)],
        ranges: vec![outhaul_core::runs::Run { first: 0, last: u64::MAX }],
        limit: 10,
        max_bytes: 1_000,
    };
    assert_eq!(store.read(&request).await.unwrap_err().kind, StoreErrorKind::ReadOnly);
    assert_eq!(store.inspect().await.unwrap_err().kind, StoreErrorKind::ReadOnly);
    server.stop().await;
    std::fs::remove_file(data.join("standby.signal")).unwrap();
    server.restart().await;
    assert!(store.read(&request).await.is_ok());
}

#[tokio::test]
async fn a_server_that_was_killed_is_found_again() {
    let server = OwnServer::start(Flavour::Postgres, &[]).await;
    let database = server.database().await;
    let store = outhaul_store::open(StoreOptions::new(database.url.clone())).await.unwrap();
    store.init(&InitPlan { shards: 4, ..InitPlan::default() }).await.unwrap();
    let f = Fixture {
        options: StoreOptions::new(database.url.clone()),
        plan: InitPlan { shards: 4, ..InitPlan::default() },
        store,
        database,
    };
    let mut owner = f.owner("one").await;
    f.insert(&(0..20).map(AppRow::nth).collect::<Vec<_>>()).await;
    let rows = f.read_all().await;
    owner.move_rows(f.store.as_ref(), &rows).await;
    f.insert_series(20..30).await;
    server.kill9().await;
    assert_eq!(f.store.read(&f.everything()).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!(f.store.lease_round(&f.round("one")).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    server.restart().await;
    let rows = f.read_all().await;
    assert_eq!(rows.len(), 10);
    // A crash makes the sequence jump ahead, never back.
    assert!(f.store.resolved(rows[9].seq).await.unwrap() >= rows[9].seq);
    owner.move_rows(f.store.as_ref(), &rows).await;
    assert!(f.hot().await.is_empty());
}

#[tokio::test]
async fn tls_checks_the_certificate_as_told() {
    let server = OwnServer::start(Flavour::Postgres, &["tls"]).await;
    let with = |tls: Tls| StoreOptions { tls, ..StoreOptions::new(server.url()) };
    let ca = Some(server.ca_file());
    let encrypted = async |options: StoreOptions| {
        let store = outhaul_store::open(options).await.unwrap();
        store.init(&InitPlan::default()).await.unwrap();
        let mut session = Session::open(Flavour::Postgres, server.url()).await.unwrap();
        session.query_u64("SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name = 'outhaul'").await
    };
    assert_eq!(encrypted(with(Tls::default())).await, 0, "not without being told");
    assert_eq!(encrypted(with(Tls { required: true, ca_file: ca.clone(), insecure: false })).await, 1);
    assert_eq!(encrypted(with(Tls { required: true, ca_file: None, insecure: true })).await, 1);
    let by_url = format!("{}?sslmode=verify-full&sslrootcert={}", server.url(), ca.as_ref().unwrap().display());
    assert_eq!(encrypted(StoreOptions::new(by_url)).await, 1);
    // An authority that is not asked for, or a file that holds none.
    let error = open_error(with(Tls { required: true, ca_file: None, insecure: false })).await;
    assert_eq!(error.kind, StoreErrorKind::Configuration, "{error}");
    let error = open_error(with(Tls { required: true, ca_file: Some("/nowhere.pem".into()), insecure: false })).await;
    assert_eq!(error.kind, StoreErrorKind::Configuration, "{error}");
}
