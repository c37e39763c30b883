//! What needs no database: arguments, configuration, pages.

use serde_json::Value;

use crate::program::Folder;

#[tokio::test]
async fn a_wrong_configuration_tells_all_of_it_in_two_lines_each() {
    let folder = Folder::new();
    folder.write(
        "outhaul.toml",
        "[relay]\nlease_tll = \"3s\"\n[[outbox]]\nurl = \"sqlite:${NOT_SET_HERE}\"\n[[route]]\ntopic = \"*\"\nto = [\"nowhere\"]\n",
    );
    for command in [&["relay"][..], &["validate"], &["status"], &["enqueue"], &["init"], &["prune"], &["audit", "x"]] {
        let ran = folder.run(command, "", &[]).await.expect(2);
        let lines: Vec<&str> = ran.stderr.lines().collect();
        assert_eq!(ran.stdout, "", "{command:?}");
        assert_eq!(lines.len(), 6, "{command:?} {lines:#?}");
        for pair in lines.chunks(2) {
            assert!(pair[0].starts_with("OUT-3") && pair[1].starts_with("→ "), "{pair:?}");
        }
        assert!(
            ran.stderr.contains("outhaul.toml line 2: there is no key lease_tll in relay; did you mean lease_ttl?")
        );
    }
    let ran = folder.run(&["status", "--json"], "", &[]).await.expect(2);
    let codes: Vec<String> = ran
        .stderr
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["error"]["code"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(codes, ["OUT-3006", "OUT-3003", "OUT-3009"]);
}

#[tokio::test]
async fn a_file_that_is_not_toml_and_one_that_is_not_there() {
    let folder = Folder::new();
    let ran = folder.run(&["status"], "", &[]).await.expect(2);
    assert!(ran.stderr.starts_with("OUT-3001 outhaul.toml: ") && ran.stderr.contains("`--db URL`"), "{}", ran.stderr);
    folder.write("other.toml", "a = \nb = [\n");
    let ran = folder.run(&["status", "-c", "other.toml"], "", &[]).await.expect(2);
    assert!(ran.stderr.starts_with("OUT-3002 other.toml line 1: "), "{}", ran.stderr);
}

#[tokio::test]
async fn wrong_calls_end_with_2() {
    let folder = Folder::new();
    for call in [
        &["nothing"][..],
        &[],
        &["relay", "--to", "stdout:"],
        &["relay", "-c", "x", "--db", "sqlite:x"],
        &["init", "--db", "sqlite:x", "--shards", "0"],
        &["audit"],
        &["audit", "x", "--db", "sqlite:x", "--around", "yesterday"],
        &["prune", "--db", "sqlite:x", "--retention", "7"],
        &["status", "--db", "sqlite:x", "--log-level", "loud=very"],
        &["relay", "--db", "sqlite:x"],
        &["relay", "--db", "sqlite:x", "--to", "pigeon:x"],
        &["relay", "--db", "sqlite:x", "--to", "kafka:x"],
        &["status", "--db", "oracle://x"],
        &["explain", "OUT-9999"],
        &["parked"],
        &["parked", "redrive", "--db", "sqlite:x", "--why", "w"],
        &["parked", "redrive", "--db", "sqlite:x", "--all"],
        &["parked", "redrive", "--db", "sqlite:x", "--all", "--key", "k", "--why", "w"],
        &["parked", "skip", "--db", "sqlite:x", "--all", "--why", "w", "--rate", "many"],
        &["parked", "edit", "--db", "sqlite:x", "--id", "a", "--why", "w"],
        &["parked", "edit", "--db", "sqlite:x", "--id", "a", "--why", "w", "--headers", "[]"],
        &["pause", "--db", "sqlite:x", "--why", "w"],
        &["cancel", "a", "--db", "sqlite:x"],
    ] {
        let ran = folder.run(call, "", &[]).await.expect(2);
        assert!(ran.stdout.is_empty() && !ran.stderr.is_empty(), "{call:?}");
    }
}

#[tokio::test]
async fn every_code_is_explained() {
    let folder = Folder::new();
    let list = folder.run(&["explain"], "", &[]).await.expect(0);
    assert!(list.lines().len() > 60);
    for line in list.lines() {
        let (code, title) = line.split_once(' ').unwrap();
        let page = folder.run(&["explain", code], "", &[]).await.expect(0);
        assert!(page.stdout.starts_with(&format!("# {code} {title}\n")), "{code}");
    }
    let page = folder.run(&["explain", "1007", "--json"], "", &[]).await.expect(0).json();
    assert_eq!(page["code"], "OUT-1007");
}

#[tokio::test]
async fn completions_for_every_shell() {
    let folder = Folder::new();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = folder.run(&["completions", shell], "", &[]).await.expect(0).stdout;
        for word in ["until-empty", "enqueue", "retention"] {
            assert!(script.contains(word), "{shell} {word}");
        }
        assert!(!script.contains("demo-part"));
    }
}

#[tokio::test]
async fn the_version_lists_what_the_build_has() {
    let ran = Folder::new().run(&["--version"], "", &[]).await.expect(0);
    assert!(ran.stdout.starts_with(concat!("outhaul ", env!("CARGO_PKG_VERSION"), "\ndatabases:")), "{}", ran.stdout);
    assert_eq!(ran.stdout.contains(" postgres"), cfg!(feature = "postgres"));
    assert!(ran.stdout.contains("destinations:") && ran.stdout.contains("inbox"));
}

/// `outhaul reference --metrics > docs/metrics.md`; alert rules and dashboard name metrics that there are.
#[tokio::test]
async fn the_pages_of_metrics_are_up_to_date() {
    let folder = Folder::new();
    let written = folder.run(&["reference", "--metrics"], "", &[]).await.expect(0).stdout;
    let kept = include_str!("../../../../docs/metrics.md");
    assert!(written == kept, "docs/metrics.md is stale: run `outhaul reference --metrics > docs/metrics.md`");
    let known: Vec<&str> =
        kept.lines().filter_map(|l| l.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name).collect();
    for (file, text) in [
        ("alerts.yml", include_str!("../../../../packaging/prometheus/alerts.yml")),
        ("monitoring.md", include_str!("../../../../docs/monitoring.md")),
    ] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| w.starts_with("outhaul_"));
        let mut count = 0;
        for word in words {
            let name = ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
            assert!(known.contains(&name) || known.contains(&word), "{file}: there is no metric {word}");
            count += 1;
        }
        assert!(count > 3, "{file}");
    }
}

/// The reference page is written by the program: `outhaul reference > docs/configuration.md`.
#[tokio::test]
async fn the_reference_page_is_not_stale() {
    let written = Folder::new().run(&["reference"], "", &[]).await.expect(0).stdout;
    let kept = include_str!("../../../../docs/configuration.md");
    assert!(written == kept, "docs/configuration.md is stale: run `outhaul reference > docs/configuration.md`");
}

/// The examples of the reference page and of the README are configurations.
#[tokio::test]
async fn the_examples_of_the_pages_can_be_read() {
    let variables = [("DB_PASSWORD", "s3cret"), ("POINTS_PASSWORD", "s3cret")];
    for page in [include_str!("../../../../docs/configuration.md"), include_str!("../../../../README.md")] {
        let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        let folder = Folder::new();
        let secret = folder.write("points", "s3cret\n");
        folder.write("outhaul.toml", &example.replace("/run/secrets/points", secret.to_str().unwrap()));
        // What is complained about is the name of the outbox: the configuration itself was read.
        let ran = folder.run(&["enqueue", "--outbox", "nothing"], "", &variables).await.expect(2);
        assert!(ran.stderr.starts_with("OUT-3017 no outbox is named nothing; there are: orders"), "{}", ran.stderr);
        assert!(!ran.stderr.contains("s3cret"));
    }
}
