"""Applies the lines of a `file` destination, each once: python consumer.py FILE"""

import json
import sys

import pymysql

from database import connect

DUPLICATE_KEY = 1062

connection = connect()
applied = copies = 0
with connection.cursor() as cursor, open(sys.argv[1], encoding="utf-8") as lines:
    cursor.execute("CREATE TABLE IF NOT EXISTS balance (buyer VARCHAR(64) PRIMARY KEY, points INT NOT NULL)")
    for line in lines:
        if not line.endswith("\n"):
            break  # not finished yet: next time
        message = json.loads(line)
        try:
            cursor.execute("INSERT INTO inbox (consumer, id) VALUES ('points', %s)", (message["id"],))
        except pymysql.err.IntegrityError as error:
            if error.args[0] != DUPLICATE_KEY:
                raise
            connection.rollback()  # it was applied
            copies += 1
            continue
        event = message["payload"]
        cursor.execute(
            "INSERT INTO balance (buyer, points) VALUES (%s, %s) ON DUPLICATE KEY UPDATE points = points + %s",
            (event["buyer"], event["points"], event["points"]),
        )
        connection.commit()  # the effect and the mark that it happened, both or neither
        applied += 1
connection.close()
print(f"{applied} applied, {copies} copies")
