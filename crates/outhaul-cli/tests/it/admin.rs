//! The admin server of a relay: `/live`, `/ready`, `/metrics`, and `outhaul health`.

use std::time::Duration;

use outhaul_testkit::servers::Flavour;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::program::{LIMIT, Running, Scene, eventually};

const ADMIN: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n";

/// A relay with an admin server, and its address.
async fn relay(scene: &Scene, more: &str) -> (Running, String) {
    let config = format!(
        "{ADMIN}[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n[[destination]]\nname = \"trail\"\nkind = \"file\"\n\
         path = \"trail.jsonl\"\n[[route]]\ntopic = \"order-*\"\nto = [\"trail\"]\n{more}",
        scene.url()
    );
    scene.folder.write("outhaul.toml", &config);
    let mut relay = scene.folder.start(&["relay"], &[]);
    let line = relay.says("admin server listens").await;
    let address =
        line.split("address=").nth(1).unwrap().split_whitespace().next().unwrap().trim_matches('"').to_owned();
    (relay, address)
}

/// Sends these bytes, and reads until the end.
async fn raw(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    _ = tokio::time::timeout(LIMIT, stream.read_to_end(&mut answer)).await.expect("an end");
    String::from_utf8_lossy(&answer).into_owned()
}

async fn get(address: &str, path: &str) -> (u16, String) {
    let answer = raw(address, format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

async fn readiness(address: &str) -> (u16, Value) {
    let (status, body) = get(address, "/ready").await;
    (status, serde_json::from_str(&body).unwrap())
}

#[tokio::test]
async fn it_shows_what_moves_and_what_does_not() {
    let scene = Scene::ready(Flavour::Sqlite).await;
    // The second destination's folder is missing: it is down from the start.
    let more = "[[destination]]\nname = \"gone\"\nkind = \"file\"\npath = \"missing/folder/x.jsonl\"\n\
                [[route]]\ntopic = \"stock-*\"\nto = [\"gone\"]\n";
    let (relay, address) = relay(&scene, more).await;
    eventually("it is ready", async || readiness(&address).await.0 == 200).await;
    assert_eq!(get(&address, "/live").await.0, 200);
    let ok = scene.run(&["health", "--admin", &address]).await.expect(0);
    assert_eq!(ok.stdout, "ok\n");

    scene.enqueue("{\"id\":\"o1\",\"topic\":\"order-created\",\"key\":\"k\",\"payload\":1}\n").await.expect(0);
    let numbers = async |wanted: &str| get(&address, "/metrics").await.1.lines().any(|l| l == wanted);
    let delivered = "outhaul_attempts_total{outbox=\"shop\",destination=\"trail\",outcome=\"delivered\"} 1";
    eventually("it is counted", async || numbers(delivered).await).await;
    let (_, page) = get(&address, "/metrics").await;
    assert!(page.contains("# TYPE outhaul_commit_to_ack_seconds histogram\n"), "{page}");
    assert!(page.contains("outhaul_ready{outbox=\"shop\"} 1\n"), "{page}");

    scene.enqueue("{\"id\":\"s1\",\"topic\":\"stock-changed\",\"key\":\"k\",\"payload\":1}\n").await.expect(0);
    eventually("a lane that is down with something to deliver is named", async || {
        let (status, said) = readiness(&address).await;
        let stalls = said["outboxes"][0]["stalls"].as_array().unwrap().clone();
        status == 503 && stalls.iter().any(|s| s["part"].as_str().unwrap().contains("lane gone of shard 0"))
    })
    .await;
    let told = scene.run(&["health", "--admin", &address]).await.expect(3);
    assert!(told.stdout.contains("shop has not moved for") && told.stdout.contains("lane gone"), "{}", told.stdout);
    assert_eq!(get(&address, "/live").await.0, 200, "a restart would not help");
    std::fs::create_dir_all(scene.folder.path("missing/folder")).unwrap();
    eventually("it is ready again", async || readiness(&address).await.0 == 200).await;

    relay.signal("TERM").await;
    relay.end().await.expect(0);
    let gone = scene.run(&["health", "--admin", &address]).await.expect(1);
    assert!(gone.stderr.starts_with("OUT-3044 "), "{}", gone.stderr);
}

#[tokio::test]
async fn what_cannot_be_answered_is_refused() {
    let scene = Scene::ready(Flavour::Sqlite).await;
    let (relay, address) = relay(&scene, "").await;
    assert_eq!(get(&address, "/nothing?x=1").await.0, 404);
    let posted =
        raw(&address, b"POST /ready HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    assert!(posted.starts_with("HTTP/1.1 405 ") && posted.contains("allow: GET, HEAD"), "{posted}");
    let nonsense = raw(&address, b"\0\xff\xfe nonsense\r\n\r\n").await;
    assert!(nonsense.is_empty() || nonsense.starts_with("HTTP/1.1 400 "), "{nonsense}");
    let long = format!("GET /live HTTP/1.1\r\nHost: x\r\nX-Long: {}\r\n\r\n", "x".repeat(64 << 10));
    let refused = raw(&address, long.as_bytes()).await;
    assert!(refused.is_empty() || refused.starts_with("HTTP/1.1 431 "), "{refused:.200}");

    // Who connects and says nothing takes no place for long.
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let (status, _) = tokio::time::timeout(Duration::from_secs(30), get(&address, "/live")).await.expect("an answer");
    assert_eq!(status, 200);
    drop(silent);

    let other = Scene::ready(Flavour::Sqlite).await;
    let taken = other.run(&["relay", "--db", other.url(), "--to", "file:x.jsonl", "--admin", &address]).await.expect(1);
    assert!(taken.stderr.contains("OUT-3042 ") && taken.stderr.contains(&address), "{}", taken.stderr);
    let none = other.run(&["health", "--db", other.url()]).await.expect(2);
    assert!(none.stderr.starts_with("OUT-3043 "), "{}", none.stderr);
    relay.signal("TERM").await;
    relay.end().await.expect(0);
}

/// A database that does not answer any more is named within ten seconds, and the relay goes on afterwards.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_database_that_hangs_is_named() {
    use outhaul_testkit::proxy::Proxy;
    let scene = Scene::ready(Flavour::Postgres).await;
    let proxy = Proxy::start(scene.database.address()).await;
    let config = format!(
        "{ADMIN}[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n[[destination]]\nname = \"trail\"\nkind = \"file\"\n\
         path = \"trail.jsonl\"\n[[route]]\ntopic = \"*\"\nto = [\"trail\"]\n",
        scene.database.url_at(proxy.address())
    );
    scene.folder.write("outhaul.toml", &config);
    let mut relay = scene.folder.start(&["relay"], &[]);
    let line = relay.says("admin server listens").await;
    let address =
        line.split("address=").nth(1).unwrap().split_whitespace().next().unwrap().trim_matches('"').to_owned();
    eventually("it is ready", async || readiness(&address).await.0 == 200).await;
    proxy.refuse().await;
    proxy.cut_all().await;
    let began = tokio::time::Instant::now();
    eventually("it is named", async || readiness(&address).await.0 == 503).await;
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    let (_, said) = readiness(&address).await;
    let stalls = said["outboxes"][0]["stalls"].to_string();
    assert!(stalls.contains("OUT-1001"), "{said}");
    proxy.accept().await;
    eventually("it is ready again", async || readiness(&address).await.0 == 200).await;
    relay.signal("TERM").await;
    relay.end().await.expect(0);
}
