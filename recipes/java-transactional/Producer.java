import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Stores orders, each announced by a transactional message: java -cp 'lib/*' Producer.java
 *
 * `outhaul checkback` answers the broker's questions, a relay delivers what the broker does not.
 */
public class Producer {
    static final String URL = "jdbc:postgresql://" + System.getenv("DB_HOST") + ":" + System.getenv("DB_PORT") + "/"
        + System.getenv("DB_NAME");
    static final String TOPIC = variable("MQ_TOPIC", "order-created");
    static final String ROW = "INSERT INTO outbox_transaction (id, message_id, topic, msg_key, payload)"
        + " VALUES (?, ?, ?, ?, ?)";
    static final String ENDED = "UPDATE outbox_transaction SET state = 'ended', since_at = now(), msg_key = NULL,"
        + " headers = NULL, payload = NULL WHERE id = ? AND state = 'committed'";

    public static void main(String[] arguments) throws Exception {
        try (Connection db = connect()) {
            db.createStatement().execute("CREATE TABLE IF NOT EXISTS orders (id INT PRIMARY KEY, message TEXT NOT NULL)");
        }
        var producer = new TransactionMQProducer(variable("MQ_GROUP", "orders-service"));
        producer.setNamesrvAddr(System.getenv("MQ_NAMESRV"));
        producer.setTransactionListener(new Orders());
        producer.start();
        String origin = origin();
        var orders = Executors.newFixedThreadPool(4);
        for (int number = 1; number <= 20; number++) {
            int order = number;
            orders.execute(() -> send(producer, order, origin));
        }
        orders.shutdown();
        orders.awaitTermination(1, TimeUnit.MINUTES);
        producer.shutdown();
    }

    static void send(TransactionMQProducer producer, int order, String origin) {
        String buyer = "user-" + order % 3;
        String event = "{\"order\":" + order + ",\"buyer\":\"" + buyer + "\",\"points\":10}";
        var message = new Message(TOPIC, null, buyer, event.getBytes(StandardCharsets.UTF_8));
        // By this consumers dedupe, whoever delivers the message.
        message.putUserProperty("outhaul-id", UUID.randomUUID().toString());
        // Whoever looks into another database must not judge it.
        message.putUserProperty("outhaul-origin", origin);
        try {
            var sent = producer.sendMessageInTransaction(message, order);
            if (sent.getLocalTransactionState() == LocalTransactionState.COMMIT_MESSAGE) {
                ended(message.getTransactionId());
            }
            System.out.println("order " + order + ": " + sent.getLocalTransactionState());
        } catch (Exception e) { // nobody needs to do anything: the row decides, if there is one
            System.out.println("order " + order + ": " + e);
        }
    }

    static class Orders implements TransactionListener {
        /** Called when the broker has the half message. */
        @Override
        public LocalTransactionState executeLocalTransaction(Message half, Object order) {
            try (Connection db = connect()) {
                db.setAutoCommit(false);
                record(db, half); // first: a half that was judged before ends the transaction here
                store(db, (int) order, half.getUserProperty("outhaul-id"));
                if ((int) order % 4 == 0) { // the order fails: there is no event of it either
                    db.rollback();
                    return LocalTransactionState.ROLLBACK_MESSAGE;
                }
                stopAt("before-commit", (int) order);
                db.commit();
                stopAt("after-commit", (int) order);
                return LocalTransactionState.COMMIT_MESSAGE;
            } catch (SQLException e) {
                // A duplicate key: it was judged, and is rolled back by close(). Anything else, an unanswered COMMIT above
                // all: nobody here knows. Never ROLLBACK_MESSAGE, the row decides.
                System.out.println("order " + order + ": " + e.getMessage());
                return LocalTransactionState.UNKNOW;
            }
        }

        /** Left to `outhaul checkback`, which looks at the row. */
        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt half) {
            return LocalTransactionState.UNKNOW;
        }
    }

    /** The name of this outbox. */
    static String origin() throws SQLException {
        String look = "SELECT value FROM outbox_meta WHERE name = 'origin'";
        try (Connection db = connect(); var found = db.createStatement().executeQuery(look)) {
            found.next();
            return found.getString(1);
        }
    }

    /** The row that decides what becomes of the message. */
    static void record(Connection db, Message half) throws SQLException {
        try (var statement = db.prepareStatement(ROW)) {
            statement.setString(1, half.getTransactionId());
            statement.setString(2, half.getUserProperty("outhaul-id"));
            statement.setString(3, half.getTopic());
            statement.setString(4, half.getKeys());
            statement.setBytes(5, half.getBody());
            statement.executeUpdate();
        }
    }

    /**
     * The broker was told to deliver. Without this a relay would deliver the message once more; with it, it is lost if this
     * client's request was lost and then nobody answers until the broker has given up. A service marks many at a time.
     */
    static void ended(String transaction) throws SQLException {
        try (Connection db = connect(); var statement = db.prepareStatement(ENDED)) {
            statement.setString(1, transaction);
            statement.executeUpdate();
        }
    }

    static void store(Connection db, int order, String message) throws SQLException {
        try (var statement = db.prepareStatement("INSERT INTO orders (id, message) VALUES (?, ?)")) {
            statement.setInt(1, order);
            statement.setString(2, message);
            statement.executeUpdate();
        }
    }

    /** To see what a crash does: waits here to be killed, if STOP_AT ("before-commit 18,after-commit 19") says so. */
    static void stopAt(String step, int order) {
        if (List.of(variable("STOP_AT", "").split(",")).contains(step + " " + order)) {
            System.out.println("order " + order + ": stopped " + step);
            while (true) {
                LockSupport.park();
            }
        }
    }

    static Connection connect() throws SQLException {
        return DriverManager.getConnection(URL, System.getenv("DB_USER"), System.getenv("DB_PASSWORD"));
    }

    static String variable(String name, String otherwise) {
        String value = System.getenv(name);
        return value == null ? otherwise : value;
    }
}
