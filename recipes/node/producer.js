// Stores orders, each with its event in the same transaction.
import { randomUUID } from "node:crypto";

import { connect } from "./database.js";

const client = await connect();
await client.query("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, buyer TEXT NOT NULL)");
for (let number = 1; number <= 20; number++) {
  const buyer = `user-${number % 3}`;
  const event = { order: number, buyer, points: 10 };
  await client.query("BEGIN");
  await client.query("INSERT INTO orders (id, buyer) VALUES ($1, $2)", [number, buyer]);
  await client.query("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ($1, $2, $3, $4)", [
    randomUUID(),
    "order-created",
    buyer,
    Buffer.from(JSON.stringify(event)),
  ]);
  // If the order fails there is no event of it either.
  await client.query(number % 4 === 0 ? "ROLLBACK" : "COMMIT");
}
await client.end();
