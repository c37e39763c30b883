//! Percentiles, and what a process used.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The clock that other processes see too, microseconds since 1970.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
}

/// A percentile of sorted values.
pub fn percentile(sorted: &[u64], percent: f64) -> u64 {
    if sorted.is_empty() {
        return 0;
    }
    let at = ((sorted.len() as f64 - 1.0) * percent / 100.0).round() as usize;
    sorted.get(at).copied().unwrap_or(0)
}

/// CPU time of a process and its children so far, and its resident memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Used {
    pub cpu: Duration,
    pub rss_kib: u64,
}

/// Clock ticks a second in /proc; fixed on Linux.
const TICKS_PER_S: f64 = 100.0;

/// What one process used, from /proc.
pub fn used(pid: u32) -> Used {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let rss_kib = status
        .lines()
        .find_map(|l| l.strip_prefix("VmRSS:"))
        .and_then(|l| l.split_whitespace().next()?.parse().ok())
        .unwrap_or(0);
    Used { cpu: Duration::from_secs_f64((ticks(11) + ticks(12)) / TICKS_PER_S), rss_kib }
}

/// The most resident memory that a process ever had, KiB.
pub fn peak_rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// What the server that listens on a loopback port used, its child processes included.
pub fn used_by_server(port: u16) -> Used {
    let Some(main) = listener(port) else { return Used::default() };
    let mut sum = used(main);
    sum.cpu += ended_children(main);
    for pid in processes() {
        if parent(pid) == Some(main) {
            let one = used(pid);
            sum.cpu += one.cpu;
            sum.rss_kib += one.rss_kib;
        }
    }
    sum
}

/// CPU time of children that have ended, a PostgreSQL session for instance.
fn ended_children(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    Duration::from_secs_f64((ticks(13) + ticks(14)) / TICKS_PER_S)
}

fn processes() -> impl Iterator<Item = u32> {
    std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok())
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}

/// The process that listens on a loopback port: the oldest that holds the socket.
fn listener(port: u16) -> Option<u32> {
    let wanted = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
    let inode = table.lines().skip(1).find_map(|l| {
        let f: Vec<&str> = l.split_whitespace().collect();
        (f.get(1)?.ends_with(&wanted) && *f.get(3)? == "0A").then(|| (*f.get(9).unwrap_or(&"")).to_owned())
    })?;
    let socket = format!("socket:[{inode}]");
    processes()
        .filter(|pid| {
            std::fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten()
                .flatten()
                .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|l| l.to_string_lossy() == socket))
        })
        .min()
}
