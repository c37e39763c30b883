//! What happened on the connections of a client, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the start of the process. Shared by all connections of a client.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(crate) $name: AtomicU64,)* }

        /// The values of [`Counters`] at one time (each by itself, not all at one instant).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterValues { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            /// Reads all of them.
            #[must_use]
            pub fn values(&self) -> CounterValues {
                CounterValues { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Connections that became usable.
    connections_opened,
    /// Attempts that did not become a usable connection.
    connect_failures,
    /// Usable connections that ended, for whatever reason.
    connections_ended,
    /// Requests put on a connection.
    requests,
    /// Requests without an answer within their limit.
    requests_timed_out,
    /// Answers that nobody waited for any more, or never did.
    answers_without_request,
    /// Pushes of a broker that were given on.
    pushes,
    /// Pushes that were dropped since the queue for them was full, or since nobody listens.
    pushes_dropped,
    /// Requests of a broker that this client does not serve: refused, or ignored if they were one-way.
    pushes_refused,
    /// Bytes written, before TLS.
    sent_bytes,
    /// Bytes read, after TLS.
    received_bytes,
    /// Calls that wrote; each may carry many requests.
    writes,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
