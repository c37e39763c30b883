import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.UUID;

/** Stores orders, each with its event in the same transaction: java -cp 'lib/*' Producer.java */
public class Producer {
    public static void main(String[] arguments) throws SQLException {
        String url = "jdbc:postgresql://" + System.getenv("DB_HOST") + ":" + System.getenv("DB_PORT") + "/"
            + System.getenv("DB_NAME");
        try (Connection db = DriverManager.getConnection(url, System.getenv("DB_USER"), System.getenv("DB_PASSWORD"))) {
            db.createStatement().execute("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, buyer TEXT NOT NULL)");
            db.setAutoCommit(false);
            for (int number = 1; number <= 20; number++) {
                order(db, number, "user-" + number % 3);
                if (number % 4 == 0) {
                    db.rollback(); // the order fails: there is no event of it either
                } else {
                    db.commit();
                }
            }
        }
    }

    static void order(Connection db, int number, String buyer) throws SQLException {
        try (var statement = db.prepareStatement("INSERT INTO orders (id, buyer) VALUES (?, ?)")) {
            statement.setInt(1, number);
            statement.setString(2, buyer);
            statement.executeUpdate();
        }
        String event = "{\"order\":" + number + ",\"buyer\":\"" + buyer + "\",\"points\":10}";
        String insert = "INSERT INTO outbox (id, topic, msg_key, payload) VALUES (?, 'order-created', ?, ?)";
        try (var statement = db.prepareStatement(insert)) {
            statement.setString(1, UUID.randomUUID().toString());
            statement.setString(2, buyer);
            statement.setBytes(3, event.getBytes(StandardCharsets.UTF_8));
            statement.executeUpdate();
        }
    }
}
