//! A way around: what servers answer goes through the test's hands, frame by frame.
//!
//! Brokers of 4.9 register the address that they listen on, so a proxy in front of one is met only if the name server's
//! answers name the proxy instead: both addresses have the same number of digits, so that no length changes.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use rocketmq_remoting::ResponseCode;
use rocketmq_remoting::codec::{self, MAX_FRAME_BYTES, split_frame};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Dropping it ends its connections.
pub struct Detour {
    pub address: SocketAddr,
    accepting: JoinHandle<()>,
}

type See = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

impl Detour {
    /// `see` is shown each answer, without its length, and may change its bytes.
    pub async fn start(target: SocketAddr, see: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, see) = (listener.local_addr().unwrap(), Arc::new(see) as See);
        let accepting = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, target, see.clone()));
            }
        });
        Self { address, accepting }
    }

    /// In front of a name server: brokers at the first of two addresses are said to be at the second.
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

/// Code and remark of an answer.
pub fn said(answer: &[u8]) -> (ResponseCode, Option<String>) {
    let (command, _) = codec::decode(answer.to_vec().into()).unwrap();
    (command.response_code(), command.remark)
}

async fn forward(mut client: TcpStream, target: SocketAddr, see: See) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let answers = async {
        let mut buffer = BytesMut::new();
        while from_server.read_buf(&mut buffer).await? > 0 {
            while let Some(frame) = split_frame(&mut buffer, MAX_FRAME_BYTES).unwrap() {
                let mut frame = frame.to_vec();
                see(&mut frame);
                to_client.write_u32(frame.len() as u32).await?;
                to_client.write_all(&frame).await?;
            }
        }
        Ok::<_, std::io::Error>(())
    };
    // Whoever ends first ends both.
    tokio::select! {
        _ = answers => (),
        _ = tokio::io::copy(&mut from_client, &mut to_server) => (),
    }
}
