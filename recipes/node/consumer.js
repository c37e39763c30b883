// Applies the lines of a `file` destination, each once: node consumer.js FILE
import { readFile } from "node:fs/promises";

import { connect } from "./database.js";

const client = await connect();
await client.query("CREATE TABLE IF NOT EXISTS balance (buyer TEXT PRIMARY KEY, points INT NOT NULL)");
let applied = 0;
let copies = 0;
const lines = (await readFile(process.argv[2], "utf8")).split("\n");
lines.pop(); // what comes after the last newline is not finished yet
for (const line of lines) {
  const { id, payload } = JSON.parse(line);
  await client.query("BEGIN");
  const claim = await client.query(
    "INSERT INTO inbox (consumer, id) VALUES ('points', $1) ON CONFLICT (consumer, id) DO NOTHING",
    [id],
  );
  if (claim.rowCount === 0) {
    await client.query("ROLLBACK"); // it was applied
    copies += 1;
    continue;
  }
  await client.query(
    "INSERT INTO balance (buyer, points) VALUES ($1, $2) ON CONFLICT (buyer) DO UPDATE SET points = balance.points + $2",
    [payload.buyer, payload.points],
  );
  await client.query("COMMIT"); // the effect and the mark that it happened, both or neither
  applied += 1;
}
await client.end();
console.log(`${applied} applied, ${copies} copies`);
