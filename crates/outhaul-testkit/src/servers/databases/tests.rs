use super::*;
use crate::proxy::{Fate, Proxy};

#[tokio::test]
async fn databases_are_fresh_and_go_away() {
    for flavour in Flavour::ALL {
        let first = create(flavour).await;
        let second = create(flavour).await;
        first.execute("CREATE TABLE t (n INT); INSERT INTO t VALUES (1); INSERT INTO t VALUES (2), (3)").await;
        assert_eq!(first.execute("UPDATE t SET n = n + 1 WHERE n > 1").await, 2, "{flavour:?}");
        assert_eq!(first.query_u64("SELECT count(*) FROM t").await, 3);
        assert_eq!(first.query_text("SELECT 'x' FROM t").await, "x");
        assert_eq!(first.query("SELECT n, NULL FROM t ORDER BY n").await[0], [Some("1".to_owned()), None]);
        assert!(second.session().await.try_query("SELECT count(*) FROM t").await.is_err(), "{flavour:?}");

        // Also with a transaction open on another connection.
        let mut open = first.session().await;
        open.execute("BEGIN; INSERT INTO t VALUES (4)").await;
        let (url, name) = (first.url.clone(), first.name().to_owned());
        drop(first);
        if flavour == Flavour::Sqlite {
            assert!(!std::path::Path::new(&name).exists());
        } else {
            assert!(Session::open(flavour, &url).await.is_err(), "{flavour:?}");
        }
    }
}

#[tokio::test]
async fn a_transaction_that_was_left_open_is_rolled_back() {
    for flavour in Flavour::ALL {
        let database = create(flavour).await;
        database.execute("CREATE TABLE t (n INT)").await;
        let mut open = database.session().await;
        open.execute("BEGIN; INSERT INTO t VALUES (1)").await;
        assert_eq!(database.query_u64("SELECT count(*) FROM t").await, 0);
        drop(open);
        database.execute("CREATE TABLE proof (n INT); DROP TABLE t").await; // waits for the transaction's end
    }
}

#[tokio::test]
async fn a_restricted_user_has_the_rights_that_were_named() {
    for flavour in Flavour::SERVERS {
        let mut database = create(flavour).await;
        database.execute("CREATE TABLE t (n INT); CREATE TABLE other (n INT)").await;
        let url = database.restricted_user(&["INSERT ON t"]).await;
        let mut session = Session::open(flavour, &url).await.unwrap();
        session.execute("INSERT INTO t VALUES (1)").await;
        assert!(session.try_query("SELECT n FROM t").await.is_err(), "{flavour:?}");
        assert!(session.try_execute("INSERT INTO other VALUES (1)").await.is_err(), "{flavour:?}");
        assert!(Session::open(flavour, &database.url_as("outhaul", "wrong")).await.is_err(), "{flavour:?}");
    }
}

/// A commit through the proxy, with its fate; whether its client got an answer.
async fn commit_with(flavour: Flavour, database: &TestDatabase, proxy: &Proxy) -> bool {
    let mut session = Session::open(flavour, &database.url_at(proxy.address())).await.unwrap();
    session.execute("BEGIN").await;
    session.execute("INSERT INTO t VALUES (1)").await;
    session.try_execute("COMMIT").await.is_ok()
}

#[tokio::test]
async fn a_commit_is_carried_out_although_its_answer_is_lost() {
    for flavour in Flavour::SERVERS {
        let database = create(flavour).await;
        database.execute("CREATE TABLE t (n INT)").await;
        let proxy = Proxy::start(database.address()).await;

        let lost = proxy.trap(flavour.commit_bytes(), Fate::AnswerLost);
        assert!(!commit_with(flavour, &database, &proxy).await);
        lost.finished().await;
        assert_eq!(database.query_u64("SELECT count(*) FROM t").await, 1, "{flavour:?}");

        let lost = proxy.trap(flavour.commit_bytes(), Fate::RequestLost);
        assert!(!commit_with(flavour, &database, &proxy).await);
        lost.finished().await;
        assert_eq!(database.query_u64("SELECT count(*) FROM t").await, 1, "{flavour:?}");

        let late = proxy.trap(flavour.commit_bytes(), Fate::RequestLate);
        assert!(!commit_with(flavour, &database, &proxy).await);
        assert_eq!(database.query_u64("SELECT count(*) FROM t").await, 1, "{flavour:?}");
        late.release();
        late.finished().await;
        assert_eq!(database.query_u64("SELECT count(*) FROM t").await, 2, "{flavour:?}");

        assert!(commit_with(flavour, &database, &proxy).await);
    }
}

async fn server_of_its_own(flavour: Flavour, setting: &str, shown: &str) {
    let server = OwnServer::start(flavour, &[setting]).await;
    let database = server.database().await;
    assert_eq!(database.query(shown).await[0].last().unwrap().as_deref(), setting.split('=').nth(1));
    database.execute("CREATE TABLE t (n INT); INSERT INTO t VALUES (1)").await;

    server.kill9().await;
    let refused = tokio::net::TcpStream::connect(server.address()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    server.restart().await;
    assert_eq!(database.query_u64("SELECT n FROM t").await, 1);

    server.pause().await;
    let waiting = tokio::spawn({
        let url = database.url.clone();
        async move { Session::open(flavour, &url).await.unwrap().query_u64("SELECT n FROM t").await }
    });
    // The kernel accepts for a server that hangs, so that this only shows that nothing was refused.
    tokio::net::TcpStream::connect(server.address()).await.unwrap();
    assert!(!waiting.is_finished());
    server.resume().await;
    assert_eq!(waiting.await.unwrap(), 1);

    server.stop().await;
    server.restart().await;
    assert_eq!(database.query_u64("SELECT n FROM t").await, 1);
    let (folder, address) = (server.folder().to_owned(), server.address());
    drop(server);
    assert!(!folder.exists());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_mariadb_of_its_own() {
    server_of_its_own(
        Flavour::MariaDb,
        "max_allowed_packet=2097152",
        "SHOW GLOBAL VARIABLES LIKE 'max_allowed_packet'",
    )
    .await;
}

#[tokio::test]
async fn a_mysql_of_its_own() {
    server_of_its_own(Flavour::MySql, "max_allowed_packet=2097152", "SHOW GLOBAL VARIABLES LIKE 'max_allowed_packet'")
        .await;
}

#[tokio::test]
async fn a_postgres_of_its_own() {
    let setting = "default_transaction_isolation=serializable";
    server_of_its_own(Flavour::Postgres, setting, "SHOW default_transaction_isolation").await;
}

#[tokio::test]
async fn a_server_offers_tls_when_asked() {
    for (flavour, shown, on) in
        [(Flavour::MariaDb, "SHOW VARIABLES LIKE 'have_ssl'", "YES"), (Flavour::Postgres, "SHOW ssl", "on")]
    {
        let server = OwnServer::start(flavour, &["tls"]).await;
        assert_eq!(server.database().await.query(shown).await[0].last().unwrap().as_deref(), Some(on));
        assert!(std::fs::read_to_string(server.ca_file()).unwrap().starts_with("-----BEGIN CERTIFICATE-----"));
        server.restart().await;
    }
}

#[test]
fn urls_change_in_the_part_that_is_meant() {
    let database = TestDatabase {
        url: "mysql://outhaul:outhaul@127.0.0.1:15001/t_1".into(),
        flavour: Flavour::MySql,
        leftover: Leftover::Nothing,
        users: Vec::new(),
    };
    assert_eq!(database.url_as("a", "b"), "mysql://a:b@127.0.0.1:15001/t_1");
    assert_eq!(database.url_at(SocketAddr::from(([127, 0, 0, 1], 9))), "mysql://outhaul:outhaul@127.0.0.1:9/t_1");
    assert_eq!((database.address().port(), database.name()), (15001, "t_1"));
}
