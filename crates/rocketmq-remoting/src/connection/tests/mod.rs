//! Against a scripted peer: what real brokers cannot be made to do on demand.

mod peer;

use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::code::{RequestCode, ResponseCode};
use peer::Peer;

const LIMIT: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

fn ask(text: &str) -> Command {
    Command::request(RequestCode::GetMaxOffset).with("topic", text)
}

fn options() -> ConnectionOptions {
    ConnectionOptions { backoff_first: Duration::from_millis(5), ..ConnectionOptions::default() }
}

fn greeted() -> ConnectionOptions {
    ConnectionOptions { greeting: Some(Arc::new(|| Ok(Command::request(RequestCode::HeartBeat)))), ..options() }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    timeout(LIMIT, what).await.expect("it took too long")
}

#[tokio::test]
async fn answers_out_of_order_find_their_requests() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        let (a, b, c) = (line.read().await, line.read().await, line.read().await);
        for request in [c, a, b] {
            line.answer(&request, ResponseCode::Success).await;
        }
        line.silence().await;
    });
    let connection = Connection::open(address, options()).await.unwrap();
    let call = |text| connection.call(ask(text), LIMIT);
    let (a, b, c) = within(async { tokio::join!(call("a"), call("b"), call("c")) }).await;
    for (text, answer) in [("a", a), ("b", b), ("c", c)] {
        assert_eq!(answer.unwrap().ext.get("topic"), Some(text));
    }
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test]
async fn an_answer_in_pieces_is_put_together() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        let request = line.read().await;
        let answer = Command::answer_to(&request, ResponseCode::Success, None).with_body(vec![7; 200_000]);
        for piece in peer::frame(&answer).chunks(50_021) {
            line.write(piece).await;
            sleep(Duration::from_millis(2)).await;
        }
        line.silence().await;
    });
    let connection = Connection::open(address, options()).await.unwrap();
    let answer = within(connection.call(ask("a"), LIMIT)).await.unwrap();
    assert_eq!(answer.body, Bytes::from(vec![7; 200_000]));
}

#[tokio::test]
async fn a_late_answer_is_counted_and_hurts_nobody() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        let first = line.read().await;
        let second = line.read().await;
        line.answer(&first, ResponseCode::Success).await;
        line.answer(&second, ResponseCode::Success).await;
        line.silence().await;
    });
    let connection = Connection::open(address, options()).await.unwrap();
    let error = connection.call(ask("late"), SHORT).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { sent: true, .. }), "{error:?}");
    assert!(error.may_have_been_done());
    let answer = within(connection.call(ask("next"), LIMIT)).await.unwrap();
    assert_eq!(answer.ext.get("topic"), Some("next"));
    let counts = connection.shared.options.counters.values();
    assert_eq!((counts.answers_without_request, counts.requests_timed_out, counts.requests), (1, 1, 2));
}

#[tokio::test]
async fn a_full_window_waits_and_its_wait_is_part_of_the_limit() {
    let (peer, address) = Peer::listen().await;
    let (go, gone) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        let first = line.read().await;
        gone.await.unwrap();
        line.answer(&first, ResponseCode::Success).await;
        let second = line.read().await;
        assert_eq!(second.ext.get("topic"), Some("third"), "the second gave up before it was sent");
        line.answer(&second, ResponseCode::Success).await;
        line.silence().await;
    });
    let connection = Connection::open(address, ConnectionOptions { window: 1, ..options() }).await.unwrap();
    let first = tokio::spawn({
        let connection = connection.clone();
        async move { connection.call(ask("first"), LIMIT).await }
    });
    while connection.in_flight() == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let error = connection.call(ask("second"), SHORT).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { sent: false, .. }), "{error:?}");
    let third = connection.call(ask("third"), LIMIT);
    go.send(()).unwrap();
    within(third).await.unwrap();
    within(first).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_cut_in_the_middle_of_an_answer_leaves_every_request_uncertain() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        let a = line.read().await;
        let _b = line.read().await;
        let answer = peer::frame(&Command::answer_to(&a, ResponseCode::Success, None).with_body(vec![1; 100]));
        line.write(&answer[..answer.len() - 1]).await;
    });
    let connection = Connection::open(address, options()).await.unwrap();
    let (a, b) =
        within(async { tokio::join!(connection.call(ask("a"), LIMIT), connection.call(ask("b"), LIMIT)) }).await;
    for error in [a.unwrap_err(), b.unwrap_err()] {
        assert!(matches!(error, Error::ConnectionLost { sent: true, .. }), "{error:?}");
    }
    assert_eq!(&*within(connection.ended()).await, "the peer closed it in the middle of a frame");
    let error = connection.call(ask("c"), LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { sent: false, .. }), "{error:?}");
    assert!(!error.may_have_been_done());
}

#[tokio::test]
async fn what_was_never_written_whole_has_not_been_done() {
    let (peer, address) = Peer::listen().await;
    let (written, wait) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        let line = peer.accept().await;
        wait.await.unwrap();
        // It has read nothing, so that closing resets the connection.
        drop(line);
    });
    let connection = Connection::open(address, options()).await.unwrap();
    let big = |text| ask(text).with_body(vec![0; 15 * 1024 * 1024]);
    let calls = async { tokio::join!(connection.call(big("a"), LIMIT), connection.call(ask("b"), LIMIT)) };
    let cut = async {
        while connection.shared.options.counters.values().writes == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        sleep(Duration::from_millis(50)).await;
        written.send(()).unwrap();
    };
    let ((a, b), ()) = within(async { tokio::join!(calls, cut) }).await;
    for error in [a.unwrap_err(), b.unwrap_err()] {
        assert!(matches!(error, Error::ConnectionLost { sent: false, .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_request_that_gave_up_unwritten_is_taken_back() {
    let (peer, address) = Peer::listen().await;
    let stalled = tokio::spawn(async move { peer.accept().await });
    let connection = Connection::open(address, options()).await.unwrap();
    let _line = within(stalled).await.unwrap();
    let big = ask("a").with_body(vec![0; 15 * 1024 * 1024]);
    let (a, b) = tokio::join!(connection.call(big, SHORT * 2), async {
        sleep(SHORT / 2).await;
        connection.call(ask("b"), SHORT).await
    });
    assert!(matches!(a.unwrap_err(), Error::TimedOut { sent: true, .. }), "a part of it is in the socket");
    assert!(matches!(b.unwrap_err(), Error::TimedOut { sent: false, .. }));
    assert_eq!(connection.in_flight(), 0);
}

#[tokio::test]
async fn garbage_ends_the_connection_and_nothing_else() {
    let good = peer::frame(&Command::answer_to(&ask("x"), ResponseCode::Success, None));
    let mut bad_header = good.clone();
    bad_header[8] = b'!';
    for garbage in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        vec![0xFF; 64],
        vec![0, 0, 0, 4, 9, 0, 0, 0],
        vec![0, 0, 0, 4, 0, 0, 0, 99],
        vec![0, 0, 0, 0],
        bad_header,
    ] {
        let (peer, address) = Peer::listen().await;
        tokio::spawn(async move {
            let mut line = peer.accept().await;
            line.read().await;
            line.write(&garbage).await;
            line.silence().await;
        });
        let connection = Connection::open(address, options()).await.unwrap();
        let error = within(connection.call(ask("a"), LIMIT)).await.unwrap_err();
        assert!(matches!(error, Error::ConnectionLost { sent: true, .. }), "{error:?}");
        assert!(within(connection.ended()).await.contains("cannot be read"));
    }
}

#[tokio::test]
async fn pushes_do_not_stop_answers_and_a_full_queue_drops_them() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        let request = line.read().await;
        for n in 0..10 {
            let check = Command::request(RequestCode::CheckTransactionState).with("msgId", n).one_way();
            line.write(&peer::frame(&check)).await;
        }
        line.answer(&request, ResponseCode::Success).await;
        line.silence().await;
    });
    let options = options();
    let mut checks = options.pushes.subscribe(RequestCode::CheckTransactionState, 3, 1 << 20).unwrap();
    assert!(options.pushes.subscribe(RequestCode::CheckTransactionState, 3, 1 << 20).is_none(), "one listener");
    let connection = Connection::open(address.clone(), options).await.unwrap();
    within(connection.call(ask("a"), LIMIT)).await.unwrap();
    for n in 0..3 {
        let push = within(checks.next()).await.unwrap();
        assert_eq!(push.command.ext.get("msgId"), Some(n.to_string().as_str()));
        assert_eq!(push.connection.address(), &address);
    }
    let counts = connection.shared.options.counters.values();
    assert_eq!((counts.pushes, counts.pushes_dropped), (3, 7));
}

#[tokio::test]
async fn pushes_are_bounded_in_bytes_too() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        let request = line.read().await;
        for _ in 0..10 {
            let check = Command::request(RequestCode::CheckTransactionState).one_way().with_body(vec![1; 40_000]);
            line.write(&peer::frame(&check)).await;
        }
        line.answer(&request, ResponseCode::Success).await;
        line.silence().await;
    });
    let options = options();
    let mut checks = options.pushes.subscribe(RequestCode::CheckTransactionState, 1_000, 100_000).unwrap();
    let connection = Connection::open(address, options).await.unwrap();
    within(connection.call(ask("a"), LIMIT)).await.unwrap();
    let counts = connection.shared.options.counters.values();
    assert_eq!((counts.pushes, counts.pushes_dropped), (2, 8));
    assert_eq!(within(checks.next()).await.unwrap().command.body.len(), 40_000);
}

#[tokio::test]
async fn a_push_that_wants_an_answer_is_refused_and_a_hint_is_dropped() {
    let (peer, address) = Peer::listen().await;
    let script = tokio::spawn(async move {
        let mut line = peer.accept().await;
        let mut info = Command::request(RequestCode::GetConsumerRunningInfo);
        info.opaque = 77;
        line.write(&peer::frame(&Command::request(RequestCode::NotifyConsumerIdsChanged).one_way())).await;
        line.write(&peer::frame(&info)).await;
        line.read().await
    });
    let connection = Connection::open(address, options()).await.unwrap();
    let refusal = within(script).await.unwrap();
    assert!(refusal.is_answer());
    assert_eq!((refusal.opaque, refusal.response_code()), (77, ResponseCode::RequestCodeNotSupported));
    assert!(refusal.remark.unwrap().contains("GET_CONSUMER_RUNNING_INFO"));
    let counts = connection.shared.options.counters.values();
    assert_eq!((counts.pushes_refused, counts.pushes_dropped), (1, 1));
}

#[tokio::test]
async fn a_dropped_request_leaves_nothing_behind() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move { peer.accept().await.silence().await });
    let connection = Connection::open(address, ConnectionOptions { window: 1, ..options() }).await.unwrap();
    for _ in 0..3 {
        assert!(timeout(Duration::from_millis(20), connection.call(ask("a"), LIMIT)).await.is_err());
        assert_eq!(connection.in_flight(), 0);
    }
    connection.close();
    let error = connection.call(ask("b"), LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::ConnectionLost { sent: false, .. }), "{error:?}");
}

#[tokio::test]
async fn requests_of_one_moment_are_written_together() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        loop {
            let request = line.read().await;
            line.answer(&request, ResponseCode::Success).await;
        }
    });
    let connection = Connection::open(address, options()).await.unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let connection = connection.clone();
        calls.spawn(async move { connection.call(ask("a"), LIMIT).await.map(drop) });
    }
    while let Some(done) = within(calls.join_next()).await {
        done.unwrap().unwrap();
    }
    let counts = connection.shared.options.counters.values();
    assert_eq!(counts.requests, 50);
    assert!(counts.writes <= 10, "{} calls that wrote 50 requests", counts.writes);
}

#[tokio::test]
async fn a_channel_connects_again_and_counts_its_connections() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        for version in [401, 479] {
            let mut line = peer.accept().await;
            let hello = line.read().await;
            assert_eq!(hello.request_code(), RequestCode::HeartBeat);
            line.answer_as(&hello, ResponseCode::Success, version).await;
            let request = line.read().await;
            line.answer(&request, ResponseCode::Success).await;
        }
        peer.accept().await.silence().await;
    });
    let channel = Channel::new(address, greeted());
    assert_eq!(channel.status(), ChannelStatus::default());
    let mut watch = channel.watch();
    within(channel.call(ask("a"), LIMIT)).await.unwrap();
    let first = watch.status();
    assert_eq!(first.peer_version, Some(Version::V4_9_4));
    let second = within(watch.connected_after(first.generation)).await.unwrap();
    assert!(second.generation > first.generation);
    assert_eq!(second.peer_version, Some(Version(479)));
    within(channel.call(ask("b"), LIMIT)).await.unwrap();
}

#[tokio::test]
async fn while_nobody_listens_requests_fail_as_unsent_at_the_pace_of_the_backoff() {
    let (peer, address) = Peer::listen().await;
    drop(peer);
    let channel = Channel::new(address, ConnectionOptions { backoff_first: Duration::from_millis(20), ..options() });
    let began = Instant::now();
    for _ in 0..4 {
        let error = within(channel.call(ask("a"), LIMIT)).await.unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error:?}");
        assert!(!error.may_have_been_done());
    }
    assert!(began.elapsed() > Duration::from_millis(10 + 20 + 40), "{:?}", began.elapsed());
    let status = channel.status();
    assert!(!status.connected && status.problem.unwrap().contains("cannot connect"));
    assert!(channel.status().failed_attempts <= 5);
}

#[tokio::test]
async fn a_refused_greeting_is_the_error_of_those_who_wait() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        loop {
            let mut line = peer.accept().await;
            let hello = line.read().await;
            line.answer(&hello, ResponseCode::NoPermission).await;
        }
    });
    let channel = Channel::new(address, greeted());
    let error = within(channel.call(ask("a"), LIMIT)).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(ResponseCode::NoPermission));
    assert_eq!(channel.generation(), 0);
}

#[tokio::test]
async fn a_peer_that_falls_silent_is_given_up_and_connected_again() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut silent = peer.accept().await;
        let hello = silent.read().await;
        silent.answer(&hello, ResponseCode::Success).await;
        let mut line = peer.accept().await;
        let hello = line.read().await;
        line.answer(&hello, ResponseCode::Success).await;
        line.silence().await;
    });
    let channel = Channel::new(address, ConnectionOptions { heartbeat_limit: SHORT, ..greeted() });
    let mut watch = channel.watch();
    let error = within(channel.call(ask("a"), SHORT)).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { sent: true, .. }), "{error:?}");
    let silent = channel.generation();
    within(watch.connected_after(silent)).await.unwrap();
}

#[tokio::test]
async fn heartbeats_come_by_themselves_and_on_demand() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut line = peer.accept().await;
        loop {
            let request = line.read().await;
            assert_eq!(request.request_code(), RequestCode::HeartBeat);
            line.answer(&request, ResponseCode::Success).await;
        }
    });
    let channel = Channel::new(address, ConnectionOptions { heartbeat_every: SHORT, ..greeted() });
    channel.keep_connected();
    let mut watch = channel.watch();
    while watch.status().heartbeats < 3 {
        within(watch.changed()).await.unwrap();
    }
    let before = channel.status().heartbeats;
    assert!(within(channel.heartbeat(LIMIT)).await.unwrap().heartbeats > before);
}

#[tokio::test]
async fn go_away_lets_what_is_in_flight_end_and_then_connects_again() {
    let (peer, address) = Peer::listen().await;
    tokio::spawn(async move {
        let mut old = peer.accept().await;
        let mut both = [old.read().await, old.read().await];
        both.sort_by_key(|r| r.ext.get("topic").map(str::to_owned));
        let [a, b] = both;
        old.answer(&a, ResponseCode::GoAway).await;
        old.answer(&b, ResponseCode::Success).await;
        let mut new = peer.accept().await;
        let c = new.read().await;
        new.answer(&c, ResponseCode::Success).await;
        new.silence().await;
    });
    let channel = Channel::new(address, options());
    let (a, b) = within(async { tokio::join!(channel.call(ask("a"), LIMIT), channel.call(ask("b"), LIMIT)) }).await;
    assert_eq!(a.unwrap().response_code(), ResponseCode::GoAway);
    assert_eq!(b.unwrap().response_code(), ResponseCode::Success);
    let old = channel.generation();
    within(channel.call(ask("c"), LIMIT)).await.unwrap();
    assert!(channel.generation() > old);
}

#[tokio::test]
async fn a_dropped_channel_ends_its_connection() {
    let (peer, address) = Peer::listen().await;
    let channel = Channel::new(address, options());
    channel.keep_connected();
    let mut line = within(peer.accept()).await;
    drop(channel);
    within(line.end()).await;
}

#[tokio::test]
async fn credentials_sign_each_request_and_binary_falls_back_to_json() {
    let (peer, address) = Peer::listen().await;
    let script = tokio::spawn(async move {
        let mut line = peer.accept().await;
        let mut forms = Vec::new();
        for _ in 0..2 {
            let (request, form) = line.read_in_its_form().await;
            forms.push((request.ext.get("Signature").is_some(), form));
            line.answer(&request, ResponseCode::Success).await;
        }
        forms
    });
    let options = ConnectionOptions {
        credentials: Some(crate::acl::Credentials::new("who", "secret")),
        serialization: Serialization::Binary,
        ..options()
    };
    let connection = Connection::open(address, options).await.unwrap();
    connection.call(ask("a"), LIMIT).await.unwrap();
    connection.call(Command::request(RequestCode::Unknown(200_050)), LIMIT).await.unwrap();
    let forms = within(script).await.unwrap();
    assert_eq!(forms, [(true, Serialization::Binary), (true, Serialization::Json)]);
}
