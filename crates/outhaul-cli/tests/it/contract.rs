//! `outhaul contract` and `outhaul init --inbox`: the statements that they print do what they say.

use outhaul_testkit::servers::{Flavour, Session};
use serde_json::Value;

use crate::program::{Scene, on_every_database};

on_every_database!(the_printed_statements_apply_once, the_printed_statements_take_turns);

fn database(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Sqlite => "sqlite",
        Flavour::MariaDb | Flavour::MySql => "mysql",
        Flavour::Postgres => "postgres",
    }
}

/// A file and a broker: the claim is taken once, by each consumer, and a transaction that is rolled back has not taken it.
async fn the_printed_statements_apply_once(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.folder.write(
        "outhaul.toml",
        &format!(
            "[[outbox]]\nurl = \"{}\"\n[[destination]]\nname = \"trail\"\nkind = \"file\"\npath = \"x.jsonl\"\n\
             [[destination]]\nname = \"mq\"\nkind = \"rocketmq\"\nnamesrv = [\"127.0.0.1:1\"]\non_dead = \"continue\"\n\
             [[route]]\ntopic = \"order-*\"\nto = [\"trail\"]\n[[route]]\ntopic = \"*\"\nto = [\"mq\"]\nrename = \"all\"\n",
            scene.url()
        ),
    );
    scene.run(&["init", "--inbox", "--db", scene.url()]).await.expect(0);
    scene.run(&["init", "--inbox", "--db", scene.url()]).await.expect(0);
    let printed = scene.run(&["init", "--inbox", "--print", "--db", scene.url()]).await.expect(0).stdout;
    assert!(printed.contains("inbox_message") && printed.contains("PRIMARY KEY (consumer, id)"), "{printed}");
    assert_eq!(printed.contains("GRANT"), flavour != Flavour::Sqlite);

    let text = scene.run(&["contract", "--destination", "mq"]).await.expect(0).stdout;
    for part in ["`outhaul-id`", "`outhaul-key`", "Topics: * as all", "At least once", "INSERT INTO inbox", "go on"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let unknown = scene.run(&["contract", "--destination", "other"]).await.expect(2);
    assert!(unknown.stderr.starts_with("OUT-3009 ") && unknown.stderr.contains("trail"), "{}", unknown.stderr);
    let mut session = scene.database.session().await;
    for (destination, more) in [("trail", &[][..]), ("mq", &[]), ("trail", &["--consumer", "it's \\ another"])] {
        let arguments = [&["contract", "--json", "--destination", destination], more].concat();
        let page = scene.run(&arguments).await.expect(0).json();
        let sql = &page["sql"][database(flavour)];
        assert!(!claims(&mut session, sql, "ROLLBACK").await, "no row yet: the first of {destination}");
        for copy in [false, true, true] {
            assert_eq!(claims(&mut session, sql, "COMMIT").await, copy, "{destination}: {page}");
        }
    }
    assert_eq!(scene.database.query_u64("SELECT count(*) FROM inbox").await, 3);
}

/// Runs what is printed: whether the message had been applied.
async fn claims(session: &mut Session, sql: &Value, end: &str) -> bool {
    let statement = |name: &str| sql[name].as_str().unwrap().trim_end_matches(';').replace(":id", "'m1'");
    session.execute(&statement("begin")).await;
    let seen = match session.try_execute(&statement("claim")).await {
        Ok(rows) => rows == 0,
        Err(error) => {
            assert!(error.contains("1062"), "{error}");
            true
        }
    };
    session.execute(if seen { "ROLLBACK" } else { end }).await;
    seen
}

/// An inbox: messages of a key are taken in their order, each once, though two workers want the same one.
async fn the_printed_statements_take_turns(flavour: Flavour) {
    let (scene, other) = (Scene::ready(flavour).await, Scene::new(flavour).await);
    scene.folder.write(
        "outhaul.toml",
        &format!(
            "[[outbox]]\nurl = \"{}\"\n[[destination]]\nname = \"points\"\nkind = \"inbox\"\nurl = \"{}\"\n\
             table_prefix = \"p_\"\nconsumer = \"o'points\"\n[[route]]\ntopic = \"*\"\nto = [\"points\"]\n",
            scene.url(),
            other.url()
        ),
    );
    let lines: String =
        (0..12).map(|n| format!("{{\"id\":\"m{n}\",\"topic\":\"t\",\"key\":\"k\",\"payload\":{n}}}\n")).collect();
    scene.enqueue(&lines).await.expect(0);
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let page = scene.run(&["contract", "--json", "--destination", "points"]).await.expect(0).json();
    let sql = page["sql"][database(flavour)].as_object().expect("statements for this database");
    let statement =
        |name: &str, id: &str| sql[name].as_str().unwrap().trim_end_matches(';').replace(":id", &format!("'{id}'"));
    let id_of = |rows: Vec<Vec<Option<String>>>| rows.first().and_then(|row| row[0].clone());
    let (mut a, mut b) = (other.database.session().await, other.database.session().await);
    let begin = async |session: &mut Session| {
        if sql.contains_key("isolation") {
            session.execute(&statement("isolation", "")).await;
        }
        session.execute(&statement("begin", "")).await;
    };
    let mut taken = Vec::new();
    while taken.len() < 12 {
        begin(&mut a).await;
        let id = id_of(a.query(&statement("next", "")).await).expect("a message is left");
        assert_eq!(a.execute(&statement("done", &id)).await, 1);
        if flavour != Flavour::Sqlite {
            // It does not wait, and does not get what is behind the one that is under way.
            begin(&mut b).await;
            assert_eq!(id_of(b.query(&statement("next", "")).await), None, "two workers have one key");
            b.execute("ROLLBACK").await;
        }
        a.execute(&statement("commit", "")).await;
        taken.push(id);
    }
    assert_eq!(taken, (0..12).map(|n| format!("m{n}")).collect::<Vec<_>>());
    assert!(a.query(&statement("next", "")).await.is_empty());
    // A copy is not stored again.
    scene.enqueue("{\"id\":\"m3\",\"topic\":\"t\",\"key\":\"k\",\"payload\":3}\n").await.expect(0);
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    assert!(a.query(&statement("next", "")).await.is_empty());
}

/// A message that commits while a handler looks for its next one is not overtaken by a later one of its key. `next` is
/// held up where it looks for earlier ones, until two messages of a key have come and another handler has the first.
async fn what_comes_meanwhile_is_not_overtaken(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.folder.write(
        "outhaul.toml",
        &format!(
            "[[outbox]]\nurl = \"{0}\"\n[[destination]]\nname = \"points\"\nkind = \"inbox\"\nurl = \"{0}\"\n\
             [[route]]\ntopic = \"*\"\nto = [\"points\"]\n",
            scene.url()
        ),
    );
    scene.run(&["init", "--inbox", "--db", scene.url()]).await.expect(0);
    let page = scene.run(&["contract", "--json", "--destination", "points"]).await.expect(0).json();
    let sql = page["sql"][database(flavour)].as_object().expect("statements for this database");
    let statement = |name: &str| sql[name].as_str().unwrap().trim_end_matches(';').to_owned();
    let begin = async |session: &mut Session| {
        if sql.contains_key("isolation") {
            session.execute(&statement("isolation")).await;
        }
        session.execute(&statement("begin")).await;
    };
    let come = |key: &str| {
        let row = |n| format!("('points', '{key}{n}', 't', '{key}', 'x', '0:{n}')");
        format!(
            "INSERT INTO inbox_message (consumer, id, topic, msg_key, payload, position) VALUES {}, {}",
            row(1),
            row(2)
        )
    };
    let id_of = |rows: Vec<Vec<Option<String>>>| rows.first().and_then(|row| row[0].clone());
    let name = scene.database.name().to_owned();
    let (hold, free, waits, on) = match flavour {
        Flavour::Postgres => (
            "SELECT pg_advisory_lock(7)".to_owned(),
            "SELECT pg_advisory_unlock(7)".to_owned(),
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND \
             wait_event = 'advisory'",
            "CASE WHEN e.id = 'b1' THEN pg_advisory_lock(7)::text ELSE '' END = ''".to_owned(),
        ),
        _ => (
            format!("SELECT GET_LOCK('{name}', 60)"),
            format!("SELECT RELEASE_LOCK('{name}')"),
            "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND state = 'User lock'",
            format!("IF(e.id = 'b1', GET_LOCK('{name}', 60), 1) = 1"),
        ),
    };
    scene.database.execute(&come("b")).await;
    let mut gate = scene.database.session().await;
    gate.query(&hold).await;
    let (mut a, mut b) = (scene.database.session().await, scene.database.session().await);
    begin(&mut a).await;
    assert_eq!(id_of(a.query(&statement("next")).await).as_deref(), Some("b1"));
    let mut slow = scene.database.session().await;
    begin(&mut slow).await;
    let held_up = statement("next").replacen("e.seq < m.seq", &format!("e.seq < m.seq AND {on}"), 1);
    let slow = tokio::spawn(async move { slow.query(&held_up).await });
    crate::inbox::eventually("it looks", crate::program::LIMIT, async || scene.database.query_u64(waits).await == 1)
        .await;
    scene.database.execute(&come("k")).await;
    begin(&mut b).await;
    assert_eq!(id_of(b.query(&statement("next")).await).as_deref(), Some("k1"));
    gate.query(&free).await;
    assert_eq!(id_of(slow.await.unwrap()), None, "k1 is not done");
    assert_eq!(b.execute(&statement("done").replace(":id", "'k1'")).await, 1);
    b.execute("COMMIT").await;
    assert_eq!(id_of(b.query(&statement("next")).await).as_deref(), Some("k2"));
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn what_comes_meanwhile_is_not_overtaken_mariadb() {
    what_comes_meanwhile_is_not_overtaken(Flavour::MariaDb).await;
}

#[cfg(feature = "mysql")]
#[tokio::test]
async fn what_comes_meanwhile_is_not_overtaken_mysql() {
    what_comes_meanwhile_is_not_overtaken(Flavour::MySql).await;
}

#[cfg(feature = "postgres")]
#[tokio::test]
async fn what_comes_meanwhile_is_not_overtaken_postgres() {
    what_comes_meanwhile_is_not_overtaken(Flavour::Postgres).await;
}
