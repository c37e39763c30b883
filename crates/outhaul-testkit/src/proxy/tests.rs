use tokio::sync::mpsc;

use super::*;

/// A server that hands the test every connection.
struct Backend {
    address: SocketAddr,
    clients: mpsc::Receiver<TcpStream>,
    task: JoinHandle<()>,
}

impl Backend {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (send, clients) = mpsc::channel(16);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if send.send(client).await.is_err() {
                    return;
                }
            }
        });
        Self { address, clients, task }
    }

    async fn next(&mut self) -> TcpStream {
        self.clients.recv().await.unwrap()
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pair() -> (Proxy, Backend, TcpStream, TcpStream) {
    let mut backend = Backend::start().await;
    let proxy = Proxy::start(backend.address).await;
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    let server = backend.next().await;
    (proxy, backend, client, server)
}

async fn expect(stream: &mut TcpStream, wanted: &[u8]) {
    let mut bytes = vec![0; wanted.len()];
    stream.read_exact(&mut bytes).await.unwrap();
    assert_eq!(bytes, wanted);
}

/// What still comes until the other side is gone, with or without a goodbye.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    _ = stream.read_to_end(&mut bytes).await;
    bytes
}

#[tokio::test]
async fn bytes_and_the_end_of_a_stream_pass_both_ways() {
    let (proxy, _backend, mut client, mut server) = pair().await;
    client.write_all(b"question").await.unwrap();
    expect(&mut server, b"question").await;
    client.shutdown().await.unwrap();
    assert_eq!(rest(&mut server).await, b"");
    server.write_all(b"late answer").await.unwrap();
    drop(server);
    assert_eq!(rest(&mut client).await, b"late answer");
    let counts = proxy.wait_until(|counts| counts.open.is_empty()).await;
    assert_eq!((counts.accepted, counts.cut, counts.to_server_bytes, counts.to_client_bytes), (1, 0, 8, 11));
}

#[tokio::test]
async fn much_passes_unharmed() {
    let (_proxy, _backend, mut client, mut server) = pair().await;
    let sent: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).take(3_000_000).collect();
    let expected = sent.clone();
    let sending = tokio::spawn(async move {
        client.write_all(&sent).await.unwrap();
        client
    });
    expect(&mut server, &expected).await;
    sending.await.unwrap();
}

#[tokio::test]
async fn all_connections_are_cut_and_new_ones_pass() {
    let (proxy, mut backend, mut client, mut server) = pair().await;
    proxy.cut_all().await;
    assert_eq!(rest(&mut client).await, b"");
    assert_eq!(rest(&mut server).await, b"");
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let mut server = backend.next().await;
    client.write_all(b"again").await.unwrap();
    expect(&mut server, b"again").await;
    let counts = proxy.counts();
    assert_eq!((counts.accepted, counts.cut, counts.open), (2, 1, BTreeSet::from([2])));
}

#[tokio::test]
async fn new_connections_are_refused_while_old_ones_go_on() {
    let (proxy, mut backend, mut client, mut server) = pair().await;
    for _ in 0..3 {
        proxy.refuse().await;
        let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        client.write_all(b"x").await.unwrap();
        expect(&mut server, b"x").await;
        proxy.accept().await;
        let second = TcpStream::connect(proxy.address()).await.unwrap();
        backend.next().await;
        drop(second);
    }
}

#[tokio::test]
async fn a_held_direction_is_silent_and_loses_nothing() {
    let (proxy, _backend, mut client, mut server) = pair().await;
    proxy.hold(Direction::ToClient);
    server.write_all(b"answer").await.unwrap();
    // The other direction shows that time has passed for both.
    for _ in 0..100 {
        client.write_all(b"x").await.unwrap();
        expect(&mut server, b"x").await;
    }
    assert_eq!(client.try_read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(proxy.counts().to_client_bytes, 0);
    proxy.flow(Direction::ToClient);
    expect(&mut client, b"answer").await;
}

#[tokio::test]
async fn a_held_connection_can_be_cut() {
    let (proxy, _backend, mut client, mut server) = pair().await;
    proxy.hold(Direction::ToServer);
    client.write_all(b"never").await.unwrap();
    proxy.cut_all().await;
    assert_eq!(rest(&mut server).await, b"");
    assert_eq!(rest(&mut client).await, b"");
}

#[tokio::test]
async fn a_connection_is_cut_after_exactly_so_many_bytes() {
    for (direction, up) in [(Direction::ToServer, true), (Direction::ToClient, false)] {
        let (proxy, _backend, client, server) = pair().await;
        let (mut sender, mut receiver) = if up { (client, server) } else { (server, client) };
        let trap = proxy.cut_after(direction, 6);
        sender.write_all(b"0123").await.unwrap();
        expect(&mut receiver, b"0123").await;
        assert_eq!(trap.state(), TrapState::Armed);
        sender.write_all(b"456789").await.unwrap();
        assert_eq!(rest(&mut receiver).await, b"45");
        assert_eq!(rest(&mut sender).await, b"");
        trap.finished().await;
        assert_eq!(proxy.counts().cut, 1);
    }
}

#[tokio::test]
async fn an_answer_is_lost_after_the_server_had_the_request() {
    let (proxy, _backend, mut client, mut server) = pair().await;
    let trap = proxy.trap(b"COMMIT", Fate::AnswerLost);
    client.write_all(b"INSERT;").await.unwrap();
    expect(&mut server, b"INSERT;").await;
    server.write_all(b"ok;").await.unwrap();
    expect(&mut client, b"ok;").await;
    client.write_all(b"COMMIT").await.unwrap();
    // The client learns nothing more, before the server has even read the request.
    assert_eq!(rest(&mut client).await, b"");
    trap.sprung().await;
    assert_eq!(trap.state(), TrapState::Sprung);
    assert_eq!(rest(&mut server).await, b"COMMIT");
    server.write_all(b"committed").await.unwrap();
    drop(server);
    trap.finished().await;
    assert_eq!(proxy.counts().to_client_bytes, 3);
}

#[tokio::test]
async fn a_request_is_lost_before_the_server_sees_it() {
    let (proxy, _backend, mut client, mut server) = pair().await;
    let trap = proxy.trap(b"COMMIT", Fate::RequestLost);
    client.write_all(b"INSERT;COMMIT").await.unwrap();
    assert_eq!(rest(&mut client).await, b"");
    assert_eq!(rest(&mut server).await, b"INSERT;");
    trap.finished().await;
}

#[tokio::test]
async fn a_request_arrives_late_while_its_client_connects_anew() {
    let (proxy, mut backend, mut client, mut server) = pair().await;
    let trap = proxy.trap(b"COMMIT", Fate::RequestLate);
    client.write_all(b"COMMIT").await.unwrap();
    assert_eq!(rest(&mut client).await, b"");
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    let mut second = backend.next().await;
    client.write_all(b"COMMIT").await.unwrap();
    expect(&mut second, b"COMMIT").await;
    assert_eq!(server.try_read(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    trap.release();
    assert_eq!(rest(&mut server).await, b"COMMIT");
    drop(server);
    trap.finished().await;
}

#[tokio::test]
async fn nothing_springs_once_disarmed() {
    let (proxy, _backend, mut client, mut server) = pair().await;
    let trap = proxy.trap(b"COMMIT", Fate::RequestLost);
    let limit = proxy.cut_after(Direction::ToServer, 1);
    proxy.disarm();
    client.write_all(b"COMMIT").await.unwrap();
    expect(&mut server, b"COMMIT").await;
    assert_eq!((trap.state(), limit.state()), (TrapState::Armed, TrapState::Armed));
}

#[tokio::test]
async fn a_target_that_is_down_ends_the_connection() {
    let mut backend = Backend::start().await;
    let proxy = Proxy::start(backend.address).await;
    backend.task.abort();
    _ = (&mut backend.task).await;
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(rest(&mut client).await, b"");
    assert_eq!(proxy.wait_until(|counts| counts.open.is_empty()).await.unreachable, 1);
}

#[tokio::test]
async fn a_dropped_proxy_ends_its_connections() {
    let (proxy, _backend, mut client, mut server) = pair().await;
    drop(proxy);
    assert_eq!(rest(&mut client).await, b"");
    assert_eq!(rest(&mut server).await, b"");
}
