//! A way around: what servers of RocketMQ answer goes through the test's hands, frame by frame.
//!
//! Brokers of 4.9 register the address that they listen on, so a [`Proxy`](crate::proxy::Proxy) in front of one is met only
//! if the name server's answers name the proxy instead: both addresses have the same number of digits, so that no length
//! changes.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// No answer is longer.
const MAX_FRAME_BYTES: u32 = 64 * 1024 * 1024;

/// Dropping it ends its connections.
#[derive(Debug)]
pub struct Detour {
    /// Where clients connect to.
    pub address: SocketAddr,
    accepting: JoinHandle<()>,
}

type See = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

impl Detour {
    /// `see` is shown each answer, without its length, and may change its bytes.
    ///
    /// # Panics
    /// No port can be had.
    pub async fn start(target: SocketAddr, see: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let (address, see) = (listener.local_addr().expect("its address"), Arc::new(see) as See);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, target, see.clone()));
            }
        });
        Self { address, accepting }
    }

    /// In front of a name server: brokers at the first of two addresses are said to be at the second.
    ///
    /// # Panics
    /// Two addresses differ in length.
    pub async fn names(name_server: SocketAddr, brokers: Vec<(SocketAddr, SocketAddr)>) -> Self {
        let brokers: Vec<(String, String)> =
            brokers.into_iter().map(|(at, instead)| (at.to_string(), instead.to_string())).collect();
        assert!(brokers.iter().all(|(at, instead)| at.len() == instead.len()), "{brokers:?}");
        Self::start(name_server, move |answer| {
            for (at, instead) in &brokers {
                for begin in 0..answer.len().saturating_sub(at.len() - 1) {
                    let place = &mut answer[begin..begin + at.len()];
                    if place == at.as_bytes() {
                        place.copy_from_slice(instead.as_bytes());
                    }
                }
            }
        })
        .await
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn forward(mut client: TcpStream, target: SocketAddr, see: See) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.split();
    let (from_server, mut to_server) = server.split();
    // Whoever ends first ends both.
    tokio::select! {
        _ = answers(from_server, &mut to_client, see) => (),
        _ = tokio::io::copy(&mut from_client, &mut to_server) => (),
    }
}

async fn answers(mut from: ReadHalf<'_>, to: &mut WriteHalf<'_>, see: See) -> std::io::Result<()> {
    loop {
        let length = from.read_u32().await?;
        assert!(length <= MAX_FRAME_BYTES, "an answer of {length} bytes");
        let mut frame = vec![0; length as usize];
        from.read_exact(&mut frame).await?;
        see(&mut frame);
        to.write_u32(length).await?;
        to.write_all(&frame).await?;
    }
}
