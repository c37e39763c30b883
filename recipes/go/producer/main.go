// Stores orders, each with its event in the same transaction.
package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"log"

	"outhaul-recipe/database"
)

func main() {
	db, err := database.Open()
	check(err)
	defer db.Close()
	_, err = db.Exec("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, buyer VARCHAR(64) NOT NULL)")
	check(err)
	for number := 1; number <= 20; number++ {
		check(order(db, number, fmt.Sprintf("user-%d", number%3)))
	}
}

func order(db *sql.DB, number int, buyer string) error {
	event, err := json.Marshal(map[string]any{"order": number, "buyer": buyer, "points": 10})
	if err != nil {
		return err
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	if _, err = tx.Exec("INSERT INTO orders (id, buyer) VALUES (?, ?)", number, buyer); err != nil {
		return err
	}
	// Without an id the database makes one.
	_, err = tx.Exec("INSERT INTO outbox (topic, msg_key, payload) VALUES ('order-created', ?, ?)", buyer, event)
	if err != nil || number%4 == 0 {
		return err // the order fails: there is no event of it either
	}
	return tx.Commit()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
