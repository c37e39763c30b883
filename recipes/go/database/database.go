// Package database connects to the database that the environment names.
package database

import (
	"database/sql"
	"os"

	"github.com/go-sql-driver/mysql"
)

// Open returns a pool of connections.
func Open() (*sql.DB, error) {
	config := mysql.NewConfig()
	config.Net = "tcp"
	config.Addr = os.Getenv("DB_HOST") + ":" + os.Getenv("DB_PORT")
	config.User = os.Getenv("DB_USER")
	config.Passwd = os.Getenv("DB_PASSWORD")
	config.DBName = os.Getenv("DB_NAME")
	return sql.Open("mysql", config.FormatDSN())
}
