//! `outhaul enqueue`.

use outhaul_testkit::servers::Flavour;
use tokio::io::AsyncWriteExt;

use crate::program::{Scene, on_every_database};

on_every_database!(
    a_bad_line_ends_it_after_the_good_ones_were_stored,
    a_slow_pipe_is_stored_line_by_line,
    everything_that_a_line_can_say,
    every_message_of_every_transaction_is_stored_in_order,
);

async fn a_bad_line_ends_it_after_the_good_ones_were_stored(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let good: String = (1..=700).map(|n| format!("{{\"id\":\"m{n}\",\"topic\":\"t\",\"payload\":{n}}}\n")).collect();
    let ran =
        scene.enqueue(&format!("{good}\n{{\"topic\":\"t\",\"payload\":\"s3cret\",\"kye\":1}}\n{good}")).await.expect(1);
    assert_eq!(ran.lines().len(), 700);
    assert_eq!(
        ran.stderr,
        "OUT-3019 outbox main: line 702: there is no key \"kye\"; did you mean key?; 700 messages before it were stored\n\
         → correct the line, then send it and what follows it again\n"
    );
    assert_eq!(scene.database.query_u64("SELECT COUNT(*) FROM outbox").await, 700);

    scene.folder.write("more.jsonl", "{\"id\":\"last\",\"topic\":\"t\",\"payload\":{}}\nnothing");
    let ran = scene.run(&["enqueue", "--db", scene.url(), "--file", "more.jsonl", "--json"]).await.expect(1);
    assert_eq!(ran.stdout, "{\"id\":\"last\"}\n");
    assert!(
        ran.stderr.contains("\"code\":\"OUT-3019\"") && ran.stderr.contains("line 2: it is not JSON"),
        "{}",
        ran.stderr
    );
    let ran = scene.run(&["enqueue", "--db", scene.url(), "--file", "none.jsonl"]).await.expect(1);
    assert!(ran.stderr.starts_with("OUT-3022 outbox main: none.jsonl: "), "{}", ran.stderr);
    assert_eq!(scene.database.query_u64("SELECT COUNT(*) FROM outbox").await, 701);
}

async fn a_slow_pipe_is_stored_line_by_line(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let mut running = scene.folder.start(&["enqueue", "--db", scene.url()], &[]);
    for n in 1..=3 {
        let line = format!("{{\"id\":\"m{n}\",\"topic\":\"t\",\"payload\":{n}}}\n");
        running.stdin.as_mut().unwrap().write_all(line.as_bytes()).await.unwrap();
        assert_eq!(running.line().await, format!("m{n}"));
        assert_eq!(scene.database.query_u64("SELECT COUNT(*) FROM outbox").await, n);
    }
    running.stdin.take();
    running.end().await.expect(0);
}

async fn everything_that_a_line_can_say(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene
        .enqueue(
            "{\"id\":\"a\",\"topic\":\"t\",\"key\":\"k \",\"headers\":{\"h\":\"ü\"},\"payload\":{\"price\": 1.50},\"available_at\":\"2020-01-01T00:00:00+02:00\"}\n\
             {\"id\":\"b\",\"topic\":\"t\",\"payload_base64\":\"AP8=\"}\n",
        )
        .await
        .expect(0);
    let delivered = scene.deliver("out.jsonl").await;
    let of = |id: &str| delivered.iter().find(|m| m["id"] == *id).unwrap();
    assert_eq!((&of("a")["key"], &of("a")["headers"]["h"]), (&"k ".into(), &"ü".into()));
    assert_eq!(of("b")["payload_base64"], "AP8=");
    let text = std::fs::read_to_string(scene.folder.path("out.jsonl")).unwrap();
    assert!(text.contains("1.50"), "the payload stays as it was written: {text}");
}

async fn every_message_of_every_transaction_is_stored_in_order(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    // Together beyond the bytes of one transaction; then beyond its messages.
    let large = "x".repeat(600 << 10);
    let lines: String =
        (1..=4).map(|n| format!("{{\"id\":\"l{n}\",\"topic\":\"t\",\"payload\":\"{large}\"}}\n")).collect();
    assert_eq!(scene.enqueue(&lines).await.expect(0).lines(), ["l1", "l2", "l3", "l4"]);
    let lines: String = (1..=5).map(|n| format!("{{\"id\":\"s{n}\",\"topic\":\"t\",\"payload\":{n}}}\n")).collect();
    let ran = scene.folder.run(&["enqueue", "--db", scene.url(), "--batch", "2"], &lines, &[]).await.expect(0);
    assert_eq!(ran.lines(), ["s1", "s2", "s3", "s4", "s5"]);
    let rows = scene.database.query("SELECT id FROM outbox ORDER BY seq").await;
    let ids: Vec<String> = rows.into_iter().flatten().flatten().collect();
    assert_eq!(ids, ["l1", "l2", "l3", "l4", "s1", "s2", "s3", "s4", "s5"]);
    let too_large = format!("{{\"topic\":\"t\",\"payload\":\"{}\"}}\n", "x".repeat(4 << 20));
    let ran = scene.enqueue(&too_large).await.expect(1);
    assert!(
        ran.stderr.contains("line 1: the payload has 4194306 bytes, max_message_bytes is 4194304"),
        "{}",
        ran.stderr
    );
}

/// The answer to COMMIT is lost: what was applied is found, not sent again; what was not is told.
#[cfg(any(feature = "mysql", feature = "postgres"))]
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_without_an_answer_is_asked_for() {
    use outhaul_testkit::proxy::{Fate, Proxy};
    let flavour = if cfg!(feature = "postgres") { Flavour::Postgres } else { Flavour::MariaDb };
    let scene = Scene::ready(flavour).await;
    let proxy = Proxy::start(scene.database.address()).await;
    let db = scene.database.url_at(proxy.address());
    for (n, fate, stored) in [(1, Fate::AnswerLost, 1), (2, Fate::RequestLost, 1)] {
        let trap = proxy.trap(flavour.commit_bytes(), fate);
        let line = format!("{{\"id\":\"a{n}\",\"topic\":\"t\",\"payload\":1}}\n");
        let ran = scene.folder.run(&["enqueue", "--db", &db], &line, &[]).await;
        trap.sprung().await;
        assert_eq!(scene.database.query_u64("SELECT COUNT(*) FROM outbox").await, stored, "{ran:?}");
        if fate == Fate::AnswerLost {
            assert_eq!(ran.expect(0).lines(), ["a1"]);
        } else {
            let (ran, said) = (ran.expect(1), "OUT-3020 outbox main: line 1 (0 messages before it were stored): ");
            assert!(
                ran.stdout.is_empty() && ran.stderr.starts_with(said) && ran.stderr.contains("a2"),
                "{}",
                ran.stderr
            );
        }
    }
}
