//! `outhaul relay`: starting, signals, several outboxes.

use outhaul_testkit::servers::Flavour;
use tokio::net::TcpListener;
use tokio::time::timeout;

#[cfg(feature = "sqlite")]
use crate::program::Folder;
use crate::program::{LIMIT, Scene, on_every_database};

on_every_database!(
    sigterm_drains_and_nothing_is_sent_twice,
    a_second_signal_stops_at_once_and_loses_nothing,
    a_drain_has_a_limit,
    a_drain_names_what_the_database_said,
    the_status_tells_what_is_down,
    an_inbox_gets_each_message_once,
);

async fn sigterm_drains_and_nothing_is_sent_twice(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.enqueue(&"{\"topic\":\"t\",\"key\":\"k\",\"payload\":1}\n".repeat(50)).await.expect(0);
    let call = ["relay", "--db", scene.url(), "--to", "stdout:"];
    let mut relay = scene.folder.start(&call, &[]);
    relay.line().await;
    relay.signal("TERM").await;
    relay.says("draining").await;
    let first = relay.end().await.expect(0);
    let delivered = 1 + first.lines().len();
    let mut second = call.to_vec();
    second.push("--until-empty");
    let rest = scene.run(&second).await.expect(0);
    assert_eq!(delivered + rest.lines().len(), 50, "none lost, none twice");
}

/// A destination that takes connections and never answers: the relay waits for it when it drains.
struct Silent(TcpListener);

impl Silent {
    async fn new() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    fn target(&self) -> String {
        let scheme = if cfg!(feature = "postgres") { "postgres" } else { "mysql" };
        format!("inbox:{scheme}://u:p@{}/x", self.0.local_addr().unwrap())
    }

    /// The relay has come to deliver.
    async fn visited(&self) -> tokio::net::TcpStream {
        timeout(LIMIT, self.0.accept()).await.expect("a visit").unwrap().0
    }
}

async fn a_second_signal_stops_at_once_and_loses_nothing(flavour: Flavour) {
    if cfg!(not(any(feature = "postgres", feature = "mysql"))) {
        return; // Nothing to be silent with in such a build.
    }
    let (scene, silent) = (Scene::ready(flavour).await, Silent::new().await);
    scene.enqueue("{\"id\":\"a\",\"topic\":\"t\",\"payload\":1}\n").await.expect(0);
    let long = [
        ("OUTHAUL__DESTINATION__INBOX__SEND_LIMIT", "50s"),
        ("OUTHAUL__RELAY__LEASE_TTL", "60s"),
        ("OUTHAUL__RELAY__SHUTDOWN_LIMIT", "50s"),
    ];
    let mut relay = scene.folder.start(&["relay", "--db", scene.url(), "--to", &silent.target()], &long);
    let visit = silent.visited().await;
    relay.signal("TERM").await;
    relay.says("draining").await;
    relay.signal("INT").await;
    relay.says("stopping at once").await;
    relay.end().await.expect(0);
    drop(visit);
    let audit = scene.run(&["audit", "a", "--db", scene.url(), "--json"]).await.expect(0).json();
    assert!(audit["deliveries"].as_array().unwrap().iter().all(|d| d["state"] != "delivered"), "{audit}");
}

async fn a_drain_has_a_limit(flavour: Flavour) {
    if cfg!(not(feature = "postgres")) {
        return;
    }
    let (scene, other) = (Scene::ready(flavour).await, Scene::new(Flavour::Postgres).await);
    let to = format!("inbox:{}", other.url());
    let call = ["relay", "--db", scene.url(), "--to", &to, "--until-empty"];
    scene.enqueue("{\"id\":\"first\",\"topic\":\"t\",\"payload\":1}\n").await.expect(0);
    scene.run(&call).await.expect(0);
    // The next send waits for a lock that somebody holds.
    let mut holder = other.database.session().await;
    holder.execute("BEGIN").await;
    holder.execute("LOCK TABLE inbox_message IN ACCESS EXCLUSIVE MODE").await;
    scene.enqueue("{\"id\":\"a\",\"topic\":\"t\",\"payload\":1}\n").await.expect(0);
    let relay = scene.folder.start(&call, &[("OUTHAUL__RELAY__SHUTDOWN_LIMIT", "100ms")]);
    let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                   WHERE d.datname = current_database() AND NOT l.granted";
    while other.database.query_u64(waiting).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    relay.signal("TERM").await;
    let ran = relay.end().await.expect(1);
    assert!(
        ran.stderr.contains("\nOUT-4005 outbox main: ") && !ran.stderr.contains("OUT-4005 OUT-4005"),
        "{}",
        ran.stderr
    );
}

/// What holds a drain up may be the database, not a destination.
async fn a_drain_names_what_the_database_said(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let limit = [("OUTHAUL__RELAY__SHUTDOWN_LIMIT", "1500ms"), ("OUTHAUL__RELAY__PRUNE", "false")];
    let mut relay = scene.folder.start(&["relay", "--db", scene.url(), "--to", "stdout:"], &limit);
    let insert = "INSERT INTO outbox (topic, payload) VALUES ('t', '1')";
    scene.database.execute(insert).await;
    relay.line().await;
    let refuse = match flavour {
        Flavour::Postgres => "ALTER TABLE outbox_receipt ADD CHECK (number < 0) NOT VALID",
        Flavour::MariaDb | Flavour::MySql => "ALTER TABLE outbox_receipt ADD COLUMN more INT NOT NULL",
        Flavour::Sqlite => "CREATE TRIGGER refuse BEFORE INSERT ON outbox_receipt BEGIN SELECT RAISE(ABORT, 'no'); END",
    };
    scene.database.execute(refuse).await;
    scene.database.execute(insert).await;
    relay.says("checkpoint: ").await;
    relay.signal("TERM").await;
    let ran = relay.end().await.expect(1);
    let last = ran.stderr.split("\nOUT-4005 ").last().unwrap();
    assert!(last.contains("; checkpoint: OUT-") && last.contains("see to what the database said"), "{}", ran.stderr);
}

/// The operator at night: a destination that is down is seen in the status, from any machine, and that it is up again.
async fn the_status_tells_what_is_down(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let to = format!("inbox:{}", scene.folder.path("later/points.db").display());
    let mut relay = scene.folder.start(&["relay", "--db", scene.url(), "--to", &to], &[]);
    scene.database.execute("INSERT INTO outbox (topic, payload) VALUES ('t', '1')").await;
    relay.says("destination is down").await;
    let until = async |code: i32, state: &str| loop {
        let ran = scene.run(&["status", "--db", scene.url(), "--json"]).await;
        let outbox = ran.json()["outboxes"][0].clone();
        let lane = outbox["shards"][0]["lanes"][0].clone();
        if lane["state"] == state && lane["lag"] == u64::from(code == 3) {
            assert_eq!(ran.code, code, "{}", ran.stdout);
            assert_eq!(outbox["instances"].as_array().map(Vec::len), Some(1), "{outbox}");
            return lane;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await; // The status is what is waited for.
    };
    let lane = tokio::time::timeout(crate::program::LIMIT, until(3, "down")).await.expect("it is seen to be down");
    let said = lane["last_error"].as_str().unwrap_or_default();
    assert!(said.starts_with("OUT-") && lane["down_since"].as_str().is_some_and(|at| at.ends_with('Z')), "{lane}");
    let table = scene.run(&["status", "--db", scene.url()]).await.expect(3);
    assert!(table.stdout.contains(" down since ") && table.stdout.contains(said), "{}", table.stdout);
    std::fs::create_dir(scene.folder.path("later")).unwrap();
    let lane = tokio::time::timeout(crate::program::LIMIT, until(0, "idle")).await.expect("it is seen to be up");
    assert!(lane["down_since"].is_null() && lane["last_error"].is_null(), "{lane}");
    relay.signal("TERM").await;
    relay.end().await.expect(0);
}

async fn an_inbox_gets_each_message_once(flavour: Flavour) {
    let (scene, other) = (Scene::ready(flavour).await, Scene::new(flavour).await);
    let lines: String =
        (0..100).map(|n| format!("{{\"id\":\"m{n}\",\"topic\":\"t\",\"key\":\"k\",\"payload\":{n}}}\n")).collect();
    scene.enqueue(&lines).await.expect(0);
    let to = format!("inbox:{}", other.url());
    for _ in 0..2 {
        scene.run(&["relay", "--db", scene.url(), "--to", &to, "--until-empty"]).await.expect(0);
        assert_eq!(other.database.query_u64("SELECT COUNT(*) FROM inbox_message").await, 100);
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn several_outboxes_and_everything_by_variables() {
    let folder = Folder::new();
    let variables = [
        ("OUTHAUL__OUTBOX__0__NAME", "a"),
        ("OUTHAUL__OUTBOX__0__URL", "sqlite:a.db"),
        ("OUTHAUL__OUTBOX__1__NAME", "b"),
        ("OUTHAUL__OUTBOX__1__URL", "sqlite:${file:name-of-b}"),
        ("OUTHAUL__DESTINATION__0__NAME", "trail"),
        ("OUTHAUL__DESTINATION__0__KIND", "file"),
        ("OUTHAUL__DESTINATION__TRAIL__PATH", "trail.jsonl"),
        ("OUTHAUL__ROUTE__0__TOPIC", "*"),
        ("OUTHAUL__ROUTE__0__TO", "trail"),
    ];
    folder.write("name-of-b", "b.db\n");
    let run = async |arguments: &[&str], input: &str| folder.run(arguments, input, &variables).await;
    assert_eq!(run(&["init"], "").await.expect(0).lines().len(), 2);
    let which = run(&["enqueue"], "").await.expect(2);
    assert!(which.stderr.starts_with("OUT-3017 there are several outboxes: a, b"), "{}", which.stderr);
    for (outbox, id) in [("a", "of-a"), ("b", "of-b")] {
        let line = format!("{{\"id\":\"{id}\",\"topic\":\"t\",\"payload\":1}}\n");
        run(&["enqueue", "--outbox", outbox], &line).await.expect(0);
    }
    run(&["relay", "--until-empty"], "").await.expect(0);
    let mut ids: Vec<String> =
        folder.json_lines("trail.jsonl").iter().map(|m| m["id"].as_str().unwrap().into()).collect();
    ids.sort();
    assert_eq!(ids, ["of-a", "of-b"]);
    let status = run(&["status", "--json"], "").await.expect(0).json();
    let names: Vec<&str> = status["outboxes"].as_array().unwrap().iter().map(|o| o["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(run(&["audit", "of-b"], "").await.expect(0).stdout.starts_with("of-b of topic t "));
    run(&["audit", "of-b", "--outbox", "a"], "").await.expect(1);

    std::fs::remove_file(folder.path("b.db")).unwrap();
    let half = run(&["status", "--json"], "").await.expect(1);
    assert_eq!(half.json()["outboxes"].as_array().unwrap().len(), 1, "the other outbox is still shown");
    assert!(half.stderr.contains("outbox b: "), "{}", half.stderr);
}

/// A relay that still waits for its database stops when told.
#[cfg(any(feature = "postgres", feature = "mysql"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_the_wait_for_a_database() {
    let scheme = if cfg!(feature = "postgres") { "postgres" } else { "mysql" };
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let db = format!("{scheme}://u:p@127.0.0.1:{port}/x");
    for (more, code) in [(&[][..], 0), (&["--until-empty"][..], 1)] {
        let folder = crate::program::Folder::new();
        let mut call = vec!["relay", "--db", &db, "--to", "stdout:"];
        call.extend(more);
        let mut relay = folder.start(&call, &[]);
        relay.says("OUT-1001").await;
        relay.signal("TERM").await;
        let ran = relay.end().await.expect(code);
        assert_eq!(ran.stderr.contains("OUT-3027 "), code == 1, "{}", ran.stderr);
    }
}

/// One outbox that cannot be used ends the relay, also while another one waits for its database.
#[cfg(all(feature = "sqlite", any(feature = "postgres", feature = "mysql")))]
#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_cannot_be_used_ends_those_that_wait() {
    let scheme = if cfg!(feature = "postgres") { "postgres" } else { "mysql" };
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let folder = Folder::new();
    let config = format!(
        "[[outbox]]\nname = \"down\"\nurl = \"{scheme}://u:p@127.0.0.1:{port}/x\"\n\
         [[outbox]]\nname = \"bare\"\nurl = \"sqlite:bare.db\"\n\
         [[destination]]\nname = \"out\"\nkind = \"stdout\"\n[[route]]\ntopic = \"*\"\nto = [\"out\"]\n"
    );
    folder.write("outhaul.toml", &config);
    let ran = folder.run(&["relay"], "", &[]).await.expect(1);
    assert!(ran.stderr.contains("OUT-1007 outbox bare: "), "{}", ran.stderr);
}

/// A route changes the topic and adds a tag for its destination alone; the log keeps what the application wrote.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_route_renames_and_tags() {
    let folder = Folder::new();
    folder.write(
        "outhaul.toml",
        "[[outbox]]\nname = \"main\"\nurl = \"sqlite:shop.db\"\n\
         [[destination]]\nname = \"new\"\nkind = \"file\"\npath = \"new.jsonl\"\n\
         [[destination]]\nname = \"old\"\nkind = \"file\"\npath = \"old.jsonl\"\n\
         [[route]]\ntopic = \"order-*\"\nto = [\"new\"]\nrename = \"shop.*\"\ntag = \"order\"\n\
         [[route]]\ntopic = \"*\"\nto = [\"new\", \"old\"]\n",
    );
    folder.run(&["init"], "", &[]).await.expect(0);
    let lines = "{\"id\":\"a\",\"topic\":\"order-paid\",\"payload\":1}\n\
                 {\"id\":\"b\",\"topic\":\"order-sent\",\"headers\":{\"tags\":\"own\",\"x\":\"1\"},\"payload\":2}\n\
                 {\"id\":\"c\",\"topic\":\"user\",\"payload\":3}\n";
    folder.run(&["enqueue"], lines, &[]).await.expect(0);
    folder.run(&["relay", "--until-empty"], "", &[]).await.expect(0);
    let of = |file: &str| -> Vec<(String, String)> {
        let mut all: Vec<(String, String)> = folder
            .json_lines(file)
            .iter()
            .map(|m| (m["topic"].as_str().unwrap().to_owned(), m["headers"].to_string()))
            .collect();
        all.sort();
        all
    };
    let own = r#"{"tags":"own","x":"1"}"#;
    let expected = |all: [(&str, &str); 3]| all.map(|(topic, headers)| (topic.to_owned(), headers.to_owned())).to_vec();
    let new = expected([("shop.paid", r#"{"tags":"order"}"#), ("shop.sent", own), ("user", "{}")]);
    assert_eq!(of("new.jsonl"), new);
    assert_eq!(of("old.jsonl"), expected([("order-paid", "{}"), ("order-sent", own), ("user", "{}")]));
    let audit = folder.run(&["audit", "a"], "", &[]).await.expect(0);
    assert!(audit.stdout.contains("order-paid") && !audit.stdout.contains("shop."), "{}", audit.stdout);
}

/// One outbox whose tables are missing ends the relay, and the other one is drained.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_without_tables_ends_the_relay() {
    let folder = Folder::new();
    let ran = folder.run(&["relay", "--db", "sqlite:new.db", "--to", "stdout:"], "", &[]).await.expect(1);
    assert!(
        ran.stderr.contains("OUT-1007 outbox main: ")
            && !ran.stderr.contains("main: OUT-1007")
            && ran.stderr.contains("outhaul init"),
        "{}",
        ran.stderr
    );
}

/// The demo in small: its processes, its kills and its table.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn the_demo_holds() {
    let folder = Folder::new();
    let call = ["demo", "--seconds", "2", "--rate", "50", "--kills", "1", "--json"];
    let outcome = folder.run(&call, "", &[]).await.expect(0).json();
    assert_eq!(outcome["runs"].as_array().unwrap().len(), 2, "{outcome}");
    assert!(std::fs::read_dir(&folder).unwrap().next().is_none(), "it leaves nothing behind");
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn the_log_as_json_is_an_object_a_line() {
    let scene = Scene::ready(Flavour::Sqlite).await;
    let ran = scene
        .run(&["relay", "--db", scene.url(), "--to", "stdout:", "--until-empty", "--log-format", "json"])
        .await
        .expect(0);
    assert!(ran.stderr.lines().count() > 2);
    for line in ran.stderr.lines() {
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(event["level"].is_string() && event["message"].is_string(), "{line}");
    }
    let quiet = scene
        .run(&["relay", "--db", scene.url(), "--to", "stdout:", "--until-empty", "--log-level", "error"])
        .await
        .expect(0);
    assert_eq!(quiet.stderr, "");
}
