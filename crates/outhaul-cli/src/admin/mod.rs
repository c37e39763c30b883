//! The admin server: what can be seen of this process, over HTTP. It reads what the engines say of themselves, and never
//! the database.

mod answer;
mod reference;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as Listener};
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use outhaul_relay::watch::{Turning, Watch};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) use self::reference::page as metrics_page;
use crate::codes;
use crate::failure::Failure;

/// Connections at a time; others wait to be accepted.
const CONNECTIONS: usize = 32;
/// How long a request's head may take, and what it may hold.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
const HEAD_BYTES: usize = 16 << 10;
/// A connection lasts no longer, whatever is asked on it.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);
/// After an error of accepting (no file descriptors are left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// Looks without a turn of an engine, a second apart, after which the process ends.
const HUNG_LOOKS: u32 = 45;

/// An address that is listened at.
#[derive(Debug)]
pub(crate) struct Admin {
    listener: Listener,
    /// With the port that was given, where 0 was asked for.
    pub(crate) address: SocketAddr,
}

impl Admin {
    /// Listens. Nothing is answered yet.
    ///
    /// # Errors
    /// The address is taken, or is not this machine's.
    pub(crate) fn listen(address: SocketAddr) -> Result<Self, Failure> {
        let failed = |e: std::io::Error| Failure::new(&codes::ADMIN_LISTEN, format!("listening at {address}: {e}"));
        let listener = Listener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address })
    }

    /// Answers until the process ends.
    ///
    /// # Errors
    /// The runtime takes no more sockets.
    pub(crate) fn serve(self, watches: Vec<Watch>) -> Result<(), Failure> {
        let failed = |e: std::io::Error| Failure::new(&codes::ADMIN_LISTEN, format!("listening: {e}"));
        let listener = TcpListener::from_std(self.listener).map_err(failed)?;
        let (watches, room): (Arc<[Watch]>, _) = (watches.into(), Arc::new(Semaphore::new(CONNECTIONS)));
        tokio::spawn(async move {
            while let Ok(permit) = room.clone().acquire_owned().await {
                match listener.accept().await {
                    Ok((stream, _)) => _ = tokio::spawn(connection(stream, watches.clone(), permit)),
                    Err(e) => {
                        tracing::debug!("admin server: accepting: {e}");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        });
        Ok(())
    }
}

async fn connection(stream: TcpStream, watches: Arc<[Watch]>, _permit: OwnedSemaphorePermit) {
    let service = service_fn(move |request| {
        let answer = answer::answer(&request, &watches);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(e)) = tokio::time::timeout(CONNECTION_LIMIT, connection).await {
        tracing::debug!("admin server: {e}");
    }
}

/// Ends the process when an engine does not turn any more: nothing within it could mend that, and its supervisor starts it
/// anew. In a thread, since the runtime itself may hang.
///
/// # Errors
/// The system gives no thread.
pub(crate) fn supervise(watches: Vec<Watch>) -> Result<(), Failure> {
    let looking = move || {
        let mut turning = Turning::default();
        loop {
            std::thread::park_timeout(Duration::from_secs(1));
            if let Some(outbox) = turning.look(&watches, HUNG_LOOKS) {
                let code = codes::ENGINE_HANGS.code;
                tracing::error!(outbox, code, "the engine has not turned for {HUNG_LOOKS} s: the process ends");
                std::process::exit(1);
            }
        }
    };
    std::thread::Builder::new()
        .name("outhaul-supervisor".into())
        .spawn(looking)
        .map(drop)
        .map_err(|e| Failure::new(&codes::SYSTEM, format!("starting a thread: {e}")))
}
