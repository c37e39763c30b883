//! Apache's Java client, sending the same bytes: `dev.d/java`, the command `bench`.

use std::process::Stdio;

use tokio::process::Command;

use super::sends::Sends;
use super::{BATCH, Broker, QUEUES};

/// Sends the same messages as [`super::sends`], in as many threads as there are queues, after a warm-up that is not
/// counted.
pub async fn measure(broker: Broker, topic: &str, rows: usize, payload_bytes: usize) -> Sends {
    let mut command = Command::new(crate::raw::variable("OUTHAUL_TEST_ROCKETMQ_SERVICES"));
    command.args(["java", broker.name(), "-XX:TieredStopAtLevel=4", "bench", "--namesrv", &broker.namesrv()]);
    command.args(["--topic", topic, "--count", &rows.to_string(), "--bytes", &payload_bytes.to_string()]);
    command.args(["--batch", &BATCH.to_string(), "--threads", &QUEUES.to_string(), "--like-outhaul", "yes"]);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("the script runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rfind(|line| line.starts_with('{')).expect("its figures");
    Sends::read(&serde_json::from_str(line).expect("JSON"))
}
