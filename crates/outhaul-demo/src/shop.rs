//! The shop: its orders, and the three services that must hear of each.

use rusqlite::{Connection, Transaction, params};
use serde::{Deserialize, Serialize};

use crate::kills::Dice;

/// Topic of the events.
pub(crate) const TOPIC: &str = "order-created";
/// Threads of the order service that take orders.
pub(crate) const WORKERS: u32 = 8;
/// One order in this many is rolled back after all its statements, as when the card is declined. An event of such an
/// order is a phantom.
const DECLINED_ONE_IN: u64 = 50;
const CUSTOMERS: u64 = 500;
const ARTICLES: u64 = 200;

pub(crate) const ORDER_TABLES: &str = "
CREATE TABLE orders (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  id TEXT NOT NULL UNIQUE,
  customer TEXT NOT NULL,
  total_cents INTEGER NOT NULL
);
CREATE TABLE order_item (
  order_id TEXT NOT NULL,
  sku TEXT NOT NULL,
  quantity INTEGER NOT NULL,
  price_cents INTEGER NOT NULL,
  PRIMARY KEY (order_id, sku)
) WITHOUT ROWID;
";

/// A downstream service: one number per subject, kept in a table of its own.
#[derive(Debug)]
pub(crate) struct Service {
    /// Name, also that of its inbox consumer.
    pub(crate) name: &'static str,
    table: &'static str,
    subject: &'static str,
    amount: &'static str,
    effects: fn(&Order) -> Vec<(&str, i64)>,
}

/// The three of them, in the order in which the order service calls them.
pub(crate) static SERVICES: [Service; 3] = [
    Service {
        name: "inventory",
        table: "stock",
        subject: "sku",
        amount: "reserved",
        effects: |order| order.items.iter().map(|item| (item.sku.as_str(), i64::from(item.quantity))).collect(),
    },
    Service {
        name: "points",
        table: "account",
        subject: "customer",
        amount: "points",
        effects: |order| vec![(order.customer.as_str(), order.total_cents / 100)],
    },
    Service {
        name: "risk",
        table: "profile",
        subject: "customer",
        amount: "spent_cents",
        effects: |order| vec![(order.customer.as_str(), order.total_cents)],
    },
];

impl Service {
    /// The service of a name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        SERVICES.iter().find(|s| s.name == name)
    }

    /// DDL besides the inbox. `applied` has no unique key on purpose: it shows an event that is applied twice. `arrival`
    /// notes every attempt to store an event in the inbox, also one that finds its id there already.
    pub(crate) fn tables(&self) -> String {
        let Self { table, subject, amount, .. } = self;
        format!(
            "CREATE TABLE {table} ({subject} TEXT PRIMARY KEY, {amount} INTEGER NOT NULL) WITHOUT ROWID;
             CREATE TABLE applied (event_id TEXT NOT NULL);
             CREATE TABLE arrival (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, at_ms INTEGER NOT NULL);
             CREATE TRIGGER note_arrival BEFORE INSERT ON inbox_message BEGIN
               INSERT INTO arrival (id, at_ms) VALUES (NEW.id, CAST(unixepoch('subsec') * 1000 AS INTEGER));
             END;
             CREATE INDEX inbox_message_to_do ON inbox_message (consumer, id) WHERE done_at IS NULL;"
        )
    }

    /// Applies an event's effects.
    pub(crate) fn apply(&self, tx: &Transaction<'_>, id: &str, order: &Order) -> rusqlite::Result<()> {
        let Self { table, subject, amount, .. } = self;
        let mut add = tx.prepare_cached(&format!(
            "INSERT INTO {table} ({subject}, {amount}) VALUES (?1, ?2)
             ON CONFLICT ({subject}) DO UPDATE SET {amount} = {amount} + excluded.{amount}"
        ))?;
        for (subject, amount) in (self.effects)(order) {
            add.execute(params![subject, amount])?;
        }
        tx.prepare_cached("INSERT INTO applied (event_id) VALUES (?1)")?.execute([id])?;
        Ok(())
    }

    /// The sum of an order's effects.
    pub(crate) fn amount_of(&self, order: &Order) -> i64 {
        (self.effects)(order).iter().map(|(_, amount)| amount).sum()
    }

    /// The sum of all effects that were applied.
    pub(crate) fn amount_applied(&self, db: &Connection) -> rusqlite::Result<i64> {
        db.query_row(&format!("SELECT coalesce(sum({}), 0) FROM {}", self.amount, self.table), [], |row| row.get(0))
    }
}

/// An order, which is also the payload of its event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    /// Also the event's id.
    pub(crate) id: String,
    /// Also the event's key.
    pub(crate) customer: String,
    pub(crate) total_cents: i64,
    pub(crate) items: Vec<Item>,
}

/// A line of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Item {
    pub(crate) sku: String,
    pub(crate) quantity: u32,
    pub(crate) price_cents: i64,
}

impl Order {
    /// A random order of two items; whether it will be declined.
    pub(crate) fn random(id: String, dice: &mut Dice) -> (Self, bool) {
        let first = dice.below(ARTICLES);
        let second = (first + 1 + dice.below(ARTICLES - 1)) % ARTICLES;
        let items = [first, second].map(|article| Item {
            sku: format!("sku-{article}"),
            quantity: 1 + u32::try_from(dice.below(3)).unwrap_or_default(),
            price_cents: 500 + i64::try_from(dice.below(9_500)).unwrap_or_default(),
        });
        let total_cents = items.iter().map(|item| i64::from(item.quantity) * item.price_cents).sum();
        let customer = format!("customer-{}", dice.below(CUSTOMERS));
        (Self { id, customer, total_cents, items: items.into() }, dice.below(DECLINED_ONE_IN) == 0)
    }

    /// The business statements of an order.
    pub(crate) fn insert(&self, tx: &Transaction<'_>) -> rusqlite::Result<()> {
        tx.prepare_cached("INSERT INTO orders (id, customer, total_cents) VALUES (?1, ?2, ?3)")?.execute(params![
            self.id,
            self.customer,
            self.total_cents
        ])?;
        let mut add =
            tx.prepare_cached("INSERT INTO order_item (order_id, sku, quantity, price_cents) VALUES (?1, ?2, ?3, ?4)")?;
        for item in &self.items {
            add.execute(params![self.id, item.sku, item.quantity, item.price_cents])?;
        }
        Ok(())
    }

    /// All that Outhaul asks of an application: one more row in the same transaction.
    pub(crate) fn insert_event(&self, tx: &Transaction<'_>, payload: &str) -> rusqlite::Result<()> {
        tx.prepare_cached("INSERT INTO outbox (id, topic, msg_key, payload) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![self.id, TOPIC, self.customer, payload.as_bytes()])?;
        Ok(())
    }
}
