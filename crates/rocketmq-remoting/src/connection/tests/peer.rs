//! The other side of a connection, by hand.

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::code::ResponseCode;
use crate::codec::{Serialization, decode, encode, split_frame};
use crate::command::Command;
use crate::connection::Address;

pub(super) struct Peer(TcpListener);

pub(super) struct Line {
    stream: TcpStream,
    buffer: BytesMut,
}

pub(super) fn frame(command: &Command) -> Vec<u8> {
    let mut into = BytesMut::new();
    encode(command, Serialization::Json, &mut into).unwrap();
    into.to_vec()
}

impl Peer {
    pub(super) async fn listen() -> (Self, Address) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string().parse().unwrap();
        (Self(listener), address)
    }

    pub(super) async fn accept(&self) -> Line {
        let (stream, _) = self.0.accept().await.unwrap();
        Line { stream, buffer: BytesMut::new() }
    }
}

impl Line {
    /// The next request. Never comes back when the client hung up.
    pub(super) async fn read(&mut self) -> Command {
        self.read_in_its_form().await.0
    }

    pub(super) async fn read_in_its_form(&mut self) -> (Command, Serialization) {
        loop {
            if let Some(frame) = split_frame(&mut self.buffer, 1 << 24).unwrap() {
                return decode(frame).unwrap();
            }
            if self.stream.read_buf(&mut self.buffer).await.unwrap() == 0 {
                std::future::pending::<()>().await;
            }
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// Answers with the fields of the request.
    pub(super) async fn answer(&mut self, request: &Command, code: ResponseCode) {
        self.answer_as(request, code, 401).await;
    }

    pub(super) async fn answer_as(&mut self, request: &Command, code: ResponseCode, version: i32) {
        let mut answer = Command::answer_to(request, code, None);
        answer.ext = request.ext.clone();
        answer.version = version;
        self.write(&frame(&answer)).await;
    }

    /// Keeps the connection open and says nothing.
    pub(super) async fn silence(&mut self) {
        std::future::pending::<()>().await;
    }

    /// Waits until the client hung up.
    pub(super) async fn end(&mut self) {
        while matches!(self.stream.read_buf(&mut self.buffer).await, Ok(n) if n > 0) {}
    }
}
