//! An order through SeaORM, with its event in the same transaction:
//!
//! ```sh
//! outhaul init --db sqlite:shop.db
//! cargo run -- sqlite:shop.db
//! outhaul relay --db sqlite:shop.db --to file:events.jsonl --until-empty
//! ```

use outhaul::{Event, Outbox};
use sea_orm::{ActiveModelTrait, ActiveValue::Set, ConnectionTrait, Database, Schema, TransactionTrait};

use crate::driver::SeaOrm;

mod driver;

mod orders {
    use sea_orm::entity::prelude::*;

    #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
    #[sea_orm(table_name = "orders")]
    pub struct Model {
        #[sea_orm(primary_key)]
        pub id: i32,
        pub buyer: String,
    }

    #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
    pub enum Relation {}

    impl ActiveModelBehavior for ActiveModel {}
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("the URL of a database in which `outhaul init` was run")?;
    let db = Database::connect(&url).await?;
    let mut table = Schema::new(db.get_database_backend()).create_table_from_entity(orders::Entity);
    db.execute(db.get_database_backend().build(table.if_not_exists())).await?;
    let outbox = Outbox::new();
    for fails in [false, true] {
        let tx = db.begin().await?;
        let order = orders::ActiveModel { buyer: Set("user-7".into()), ..Default::default() }.insert(&tx).await?;
        let event = Event::bytes("order-created", format!("{{\"order\":{}}}", order.id)).key(&order.buyer);
        let id = outbox.enqueue(&mut SeaOrm(&tx), event).await?;
        if fails {
            tx.rollback().await?;
            println!("order {} failed, and event {id} with it", order.id);
        } else {
            tx.commit().await?;
            println!("order {} is stored, event {id} will be delivered", order.id);
        }
    }
    Ok(())
}
