//! `outhaul health`: asks a running process whether all moves that should, for probes of containers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::arguments::Health;
use crate::failure::{Exit, Failure, Outcome};
use crate::{codes, config, output};

/// The whole of it takes no longer.
const LIMIT: Duration = Duration::from_secs(5);
/// What is read of an answer, bytes.
const MOST: u64 = 1 << 20;

/// Asks.
///
/// # Errors
/// Something does not move, or there is no answer.
pub fn run(a: &Health, json: bool) -> Outcome {
    let address = match a.admin {
        Some(address) => address,
        None => config::load(a.source.sources())?.admin.listen.ok_or_else(|| {
            Failure::new(&codes::NO_ADMIN, "no admin server is configured, and no --admin ADDRESS was given")
        })?,
    };
    let path = if a.live { "/live" } else { "/ready" };
    let (status, body) = ask(address, path)
        .map_err(|e| Failure::new(&codes::NO_ANSWER, format!("asking http://{address}{path}: {e}")))?;
    let found: Value = serde_json::from_str(&body)
        .map_err(|e| Failure::new(&codes::NO_ANSWER, format!("http://{address}{path} is not Outhaul's: {e}")))?;
    if json {
        output::json(&found)?;
    } else {
        output::lines(lines(&found, status == 200))?;
    }
    Ok(if status == 200 { Exit::Fine } else { Exit::Attention })
}

fn lines(found: &Value, fine: bool) -> Vec<String> {
    if fine {
        return vec!["ok".into()];
    }
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let mut lines: Vec<String> =
        list(&found["hung"]).iter().map(|outbox| format!("{}: the engine does not turn", text(outbox))).collect();
    for outbox in list(&found["outboxes"]) {
        for stall in list(&outbox["stalls"]) {
            lines.push(format!(
                "{} {} has not moved for {} s: {}: {}",
                text(&stall["code"]),
                text(&outbox["outbox"]),
                stall["seconds"],
                text(&stall["part"]),
                text(&stall["why"])
            ));
        }
    }
    lines
}

/// Status and body.
fn ask(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let until = Instant::now() + LIMIT;
    let left = || {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok::<_, std::io::Error>(left) }
    };
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut part = [0; 8 << 10];
    loop {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut part)? {
            0 => break,
            n => answer.extend_from_slice(part.get(..n).unwrap_or_default()),
        }
        if answer.len() as u64 > MOST {
            return Err(std::io::Error::other("the answer is too long"));
        }
    }
    let text = String::from_utf8_lossy(&answer);
    let malformed = || std::io::Error::other("the answer is not HTTP");
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(malformed)?;
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|n| n.parse().ok());
    Ok((status.ok_or_else(malformed)?, body.to_owned()))
}
