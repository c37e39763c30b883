"""Stores orders, each with its event in the same transaction."""

import json
import uuid

from database import connect

connection = connect()
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, buyer VARCHAR(64) NOT NULL)")
    for number in range(1, 21):
        buyer = f"user-{number % 3}"
        event = json.dumps({"order": number, "buyer": buyer, "points": 10})
        cursor.execute("INSERT INTO orders (id, buyer) VALUES (%s, %s)", (number, buyer))
        cursor.execute(
            "INSERT INTO outbox (id, topic, msg_key, payload) VALUES (%s, %s, %s, %s)",
            (str(uuid.uuid4()), "order-created", buyer, event.encode()),
        )
        if number % 4 == 0:
            connection.rollback()  # the order fails: there is no event of it either
        else:
            connection.commit()
connection.close()
