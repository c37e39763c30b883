//! Short demos with real processes and real kills.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod ends;
mod invariants;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use outhaul_demo::Options;

/// The demo's own binary, which knows the parts of the shop.
const DEMO: &str = env!("CARGO_BIN_EXE_outhaul-demo");

/// The `outhaul` binary: the one of this target folder, which `cargo test --workspace` has just built; built here if
/// it is not there.
fn outhaul() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            let path = Path::new(DEMO).with_file_name("outhaul");
            if !path.exists() {
                let build = ["build", "--package", "outhaul-cli", "--no-default-features", "--features", "sqlite"];
                let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
                let mut cargo = std::process::Command::new(env!("CARGO"));
                let status = cargo.args(build).arg("--target-dir").arg(target).status().expect("cargo");
                assert!(status.success(), "building the outhaul binary");
            }
            path
        })
        .clone()
}

/// A path of its own for each test, which does not exist.
fn fresh_folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("demo-{}-{test}", std::process::id()));
    assert!(!folder.exists(), "{}", folder.display());
    folder
}

/// A short demo.
fn short(test: &str) -> Options {
    Options {
        seconds: 4,
        rate: 400,
        kills: 3,
        dir: Some(fresh_folder(test)),
        part_binary: Some(DEMO.into()),
        relay_binary: Some(PathBuf::from("no relay is needed here")),
        ..Options::default()
    }
}
