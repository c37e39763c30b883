import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;

/** Applies the messages that an `inbox` destination has put into `inbox_message`, each once. */
public class Consumer {
    static final String NEXT = "SELECT id, convert_from(payload, 'UTF8')::json ->> 'buyer',"
        + " (convert_from(payload, 'UTF8')::json ->> 'points')::int FROM inbox_message"
        + " WHERE consumer = 'points' AND done_at IS NULL"
        + " ORDER BY received_at, split_part(position, ':', 2)::bigint LIMIT 1";
    static final String MARK = "UPDATE inbox_message SET done_at = now()"
        + " WHERE consumer = 'points' AND id = ? AND done_at IS NULL";
    static final String EFFECT = "INSERT INTO balance (buyer, points) VALUES (?, ?)"
        + " ON CONFLICT (buyer) DO UPDATE SET points = balance.points + excluded.points";

    public static void main(String[] arguments) throws SQLException {
        String url = "jdbc:postgresql://" + System.getenv("DB_HOST") + ":" + System.getenv("DB_PORT") + "/"
            + System.getenv("DB_NAME");
        try (Connection db = DriverManager.getConnection(url, System.getenv("DB_USER"), System.getenv("DB_PASSWORD"))) {
            db.createStatement()
                .execute("CREATE TABLE IF NOT EXISTS balance (buyer TEXT PRIMARY KEY, points INT NOT NULL)");
            db.setAutoCommit(false);
            int applied = 0;
            while (apply(db)) { // a service would look again in a while
                applied++;
            }
            System.out.println(applied + " applied");
        }
    }

    /** Takes the next message and applies it. False: nothing is left. */
    static boolean apply(Connection db) throws SQLException {
        try (var next = db.createStatement().executeQuery(NEXT);
            var mark = db.prepareStatement(MARK);
            var effect = db.prepareStatement(EFFECT)) {
            if (!next.next()) {
                return false;
            }
            mark.setString(1, next.getString(1));
            if (mark.executeUpdate() == 0) { // another worker was first
                db.rollback();
                return true;
            }
            effect.setString(1, next.getString(2));
            effect.setInt(2, next.getInt(3));
            effect.executeUpdate();
            db.commit(); // the effect and the mark that it happened, both or neither
            return true;
        }
    }
}
