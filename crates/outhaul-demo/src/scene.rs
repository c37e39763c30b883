//! The files of one run, and the tables in them.

use std::path::{Path, PathBuf};

use outhaul_store::{InitPlan, StoreOptions};

use crate::database;
use crate::error::DemoError;
use crate::options::Strategy;
use crate::shop::{SERVICES, Service};

/// A lease must be short here: after each kill, the next relay waits until the dead one's lease is over.
const RELAY_SETTINGS: &str = "lease_ttl = \"1s\"\nlease_interval = \"200ms\"\n";
/// Shorter than the lease, or the relay refuses to start.
const SEND_LIMIT: &str = "300ms";

/// The folder of one run.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    folder: PathBuf,
    /// How the service gets its events out.
    pub(crate) strategy: Strategy,
}

impl Scene {
    /// The scene in a folder that was set up before.
    pub(crate) fn at(folder: PathBuf, strategy: Strategy) -> Self {
        Self { folder, strategy }
    }

    /// Makes the folder and all databases with their tables.
    pub(crate) async fn set_up(folder: PathBuf, strategy: Strategy) -> Result<Self, DemoError> {
        let scene = Self { folder, strategy };
        std::fs::create_dir_all(scene.notes()).map_err(DemoError::file(scene.notes()))?;
        let orders = scene.orders();
        database::open(&orders)?
            .execute_batch(crate::shop::ORDER_TABLES)
            .map_err(DemoError::database("making the shop's tables"))?;
        if strategy == Strategy::Outhaul {
            let store = outhaul_store::open(StoreOptions::new(url(&orders))).await?;
            store.init(&InitPlan::default()).await?;
            store.close().await;
            scene.write_relay_config()?;
        }
        for service in &SERVICES {
            let path = scene.downstream(service);
            let inbox = outhaul_store::inbox::open(StoreOptions::new(url(&path)), 1).await?;
            inbox.init().await?;
            inbox.close().await;
            database::open(&path)?
                .execute_batch(&service.tables())
                .map_err(DemoError::database("making a downstream service's tables"))?;
        }
        Ok(scene)
    }

    fn write_relay_config(&self) -> Result<(), DemoError> {
        let text = |value: &Path| serde_json::Value::String(url(value)).to_string();
        let mut toml =
            format!("[relay]\n{RELAY_SETTINGS}\n[[outbox]]\nname = \"orders\"\nurl = {}\n", text(&self.orders()));
        for service in &SERVICES {
            let (name, url) = (service.name, text(&self.downstream(service)));
            toml += &format!(
                "\n[[destination]]\nname = \"{name}\"\nkind = \"inbox\"\nurl = {url}\nconsumer = \"{name}\"\n"
            );
            toml += &format!("send_limit = \"{SEND_LIMIT}\"\n");
        }
        let names: Vec<String> = SERVICES.iter().map(|s| format!("\"{}\"", s.name)).collect();
        toml += &format!("\n[[route]]\ntopic = \"order-*\"\nto = [{}]\n", names.join(", "));
        let path = self.relay_config();
        std::fs::write(&path, toml).map_err(DemoError::file(path))
    }

    /// The folder itself.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The order service's database.
    pub(crate) fn orders(&self) -> PathBuf {
        self.folder.join("orders.db")
    }

    /// A downstream service's database.
    pub(crate) fn downstream(&self, service: &Service) -> PathBuf {
        self.folder.join(format!("{}.db", service.name))
    }

    /// The folder of the notes that the order service's workers keep.
    pub(crate) fn notes(&self) -> PathBuf {
        self.folder.join("notes")
    }

    /// The relay's configuration.
    pub(crate) fn relay_config(&self) -> PathBuf {
        self.folder.join("relay.toml")
    }

    /// The log of a process.
    pub(crate) fn log(&self, who: &str) -> PathBuf {
        self.folder.join(format!("{who}.log"))
    }
}

fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}
