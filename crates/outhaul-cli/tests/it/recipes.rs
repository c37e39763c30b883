//! The recipes: a producer and a consumer in plain SQL in four languages, with a relay in between.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use outhaul_testkit::servers::{Flavour, TestDatabase};
use tokio::process::Command;

use crate::program::Scene;

/// A package manager may have to fetch something.
const LIMIT: Duration = Duration::from_secs(240);

/// What a producer's fifteen orders that were not rolled back come to.
const BALANCE: [(&str, u64); 3] = [("user-0", 50), ("user-1", 50), ("user-2", 50)];

/// A copy of a recipe's folder, for what its package manager leaves there.
pub struct Recipe {
    pub folder: PathBuf,
    pub scene: Scene,
}

impl Recipe {
    pub async fn new(language: &str, flavour: Flavour) -> Self {
        let scene = Scene::ready(flavour).await;
        scene.run(&["init", "--inbox", "--db", scene.url()]).await.expect(0);
        let folder = scene.folder.path(language);
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(language), &folder);
        Self { folder, scene }
    }

    /// Runs a program in the folder: its output. It must end well.
    pub async fn run(&self, program: &str, arguments: &[&str]) -> String {
        let program = if program.contains('/') { self.folder.join(program) } else { program.into() };
        let mut command = Command::new(&program);
        command.args(arguments).current_dir(&self.folder).envs(variables(&self.scene.database)).stdin(Stdio::null());
        let output = tokio::time::timeout(LIMIT, command.kill_on_drop(true).output()).await;
        let output = output.unwrap_or_else(|_| panic!("{program:?} {arguments:?} does not end"));
        let output = output.unwrap_or_else(|e| panic!("{program:?}: {e}; `./dev test` installs what is missing"));
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{program:?} {arguments:?}: {}\n{out}\n{err}", output.status);
        out.trim().to_owned()
    }

    async fn deliver_into_a_file(&self) {
        let events = self.scene.deliver("events.jsonl").await;
        assert_eq!(events.len(), 15, "what was rolled back is not there");
    }

    async fn deliver_into_the_inbox(&self) {
        self.scene.folder.write(
            "outhaul.toml",
            &format!(
                "[[outbox]]\nurl = \"{0}\"\n[[destination]]\nname = \"points\"\nkind = \"inbox\"\nurl = \"{0}\"\n\
                 [[route]]\ntopic = \"order-*\"\nto = [\"points\"]\n",
                self.scene.url()
            ),
        );
        self.scene.run(&["relay", "--until-empty"]).await.expect(0);
    }

    async fn balance_is_right(&self) {
        let rows = self.scene.database.query("SELECT buyer, points FROM balance ORDER BY buyer").await;
        let found: Vec<(String, u64)> =
            rows.into_iter().map(|r| (r[0].clone().unwrap(), r[1].as_ref().unwrap().parse().unwrap())).collect();
        let expected = BALANCE.map(|(buyer, points)| (buyer.to_owned(), points));
        assert_eq!(found, expected, "each order once");
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Where a recipe finds its database.
pub fn variables(database: &TestDatabase) -> [(&'static str, String); 5] {
    let address = database.address();
    [
        ("DB_HOST", address.ip().to_string()),
        ("DB_PORT", address.port().to_string()),
        ("DB_USER", "outhaul".into()),
        ("DB_PASSWORD", "outhaul".into()),
        ("DB_NAME", database.name().into()),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_on_mariadb_from_a_file() {
    let recipe = Recipe::new("python", Flavour::MariaDb).await;
    recipe.run("python3", &["-m", "venv", "venv"]).await;
    recipe.run("venv/bin/pip", &["install", "--quiet", "--require-hashes", "-r", "requirements.txt"]).await;
    recipe.run("venv/bin/python", &["producer.py"]).await;
    recipe.deliver_into_a_file().await;
    for said in ["15 applied, 0 copies", "0 applied, 15 copies"] {
        assert_eq!(recipe.run("venv/bin/python", &["consumer.py", "../events.jsonl"]).await, said);
        recipe.balance_is_right().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_on_postgres_from_a_file() {
    let recipe = Recipe::new("node", Flavour::Postgres).await;
    recipe.run("npm", &["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).await;
    recipe.run("node", &["producer.js"]).await;
    recipe.deliver_into_a_file().await;
    for said in ["15 applied, 0 copies", "0 applied, 15 copies"] {
        assert_eq!(recipe.run("node", &["consumer.js", "../events.jsonl"]).await, said);
        recipe.balance_is_right().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn go_on_mysql_from_an_inbox() {
    let recipe = Recipe::new("go", Flavour::MySql).await;
    recipe.run("go", &["build", "-o", "bin/", "./..."]).await;
    recipe.run("bin/producer", &[]).await;
    for said in ["15 applied", "0 applied"] {
        recipe.deliver_into_the_inbox().await;
        assert_eq!(recipe.run("bin/consumer", &[]).await, said);
        recipe.balance_is_right().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_on_postgres_from_an_inbox() {
    let recipe = Recipe::new("java", Flavour::Postgres).await;
    let fetch = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
    recipe.run("mvn", &["-q", "-B", fetch, "-DoutputDirectory=lib"]).await;
    recipe.run("java", &["-cp", "lib/*", "Producer.java"]).await;
    for said in ["15 applied", "0 applied"] {
        recipe.deliver_into_the_inbox().await;
        assert_eq!(recipe.run("java", &["-cp", "lib/*", "Consumer.java"]).await, said);
        recipe.balance_is_right().await;
    }
}
