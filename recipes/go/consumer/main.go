// Applies the messages that an `inbox` destination has put into `inbox_message`, each once.
package main

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"

	"outhaul-recipe/database"
)

const next = "SELECT id, payload FROM inbox_message WHERE consumer = 'points' AND done_at IS NULL" +
	" ORDER BY received_at, CAST(SUBSTRING_INDEX(`position`, ':', -1) AS UNSIGNED) LIMIT 1"

const mark = "UPDATE inbox_message SET done_at = CURRENT_TIMESTAMP(6)" +
	" WHERE consumer = 'points' AND id = ? AND done_at IS NULL"

const effect = "INSERT INTO balance (buyer, points) VALUES (?, ?) ON DUPLICATE KEY UPDATE points = points + ?"

func main() {
	db, err := database.Open()
	check(err)
	defer db.Close()
	_, err = db.Exec("CREATE TABLE IF NOT EXISTS balance (buyer VARCHAR(64) PRIMARY KEY, points INT NOT NULL)")
	check(err)
	applied := 0
	for {
		err := apply(db)
		if errors.Is(err, sql.ErrNoRows) {
			break // nothing is left; a service would look again in a while
		}
		check(err)
		applied++
	}
	fmt.Printf("%d applied\n", applied)
}

func apply(db *sql.DB) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after the commit
	var id, payload []byte
	if err := tx.QueryRow(next).Scan(&id, &payload); err != nil {
		return err
	}
	marked, err := tx.Exec(mark, id)
	if err != nil {
		return err
	}
	if rows, err := marked.RowsAffected(); err != nil || rows == 0 {
		return err // another worker was first
	}
	var event struct {
		Buyer  string
		Points int
	}
	if err := json.Unmarshal(payload, &event); err != nil {
		return err
	}
	if _, err := tx.Exec(effect, event.Buyer, event.Points, event.Points); err != nil {
		return err
	}
	return tx.Commit() // the effect and the mark that it happened, both or neither
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
