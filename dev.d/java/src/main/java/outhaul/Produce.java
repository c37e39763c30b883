package outhaul;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages as Java applications send them; each answer as a line. */
final class Produce {
    private static final long ROUTE_LIMIT_MS = 20_000;

    private final Options options;
    private final int count;
    private final String[] keys;
    private final String[] bodies;

    private Produce(Options options) {
        this.options = options;
        count = options.number("count", 1);
        keys = options.list("keys");
        bodies = options.list("bodies");
    }

    static void run(Options options) throws Exception {
        Produce produce = new Produce(options);
        String kind = options.text("kind", "single");
        if (kind.equals("transaction")) {
            produce.transactions();
            return;
        }
        DefaultMQProducer producer = options.connected(new DefaultMQProducer("helper-producer", options.credentials()));
        prepare(producer);
        producer.start();
        switch (kind) {
            case "single":
            case "delayed":
                for (int i = 0; i < produce.count; i++) {
                    Message message = produce.message(i);
                    produce.print(i, routed(() -> producer.send(message))).print();
                }
                break;
            case "ordered":
                for (int i = 0; i < produce.count; i++) {
                    Message message = produce.message(i);
                    String key = produce.key(i);
                    produce.print(i, routed(() -> producer.send(message, new SelectMessageQueueByHash(), key))).print();
                }
                break;
            case "batch":
                int size = options.number("batch", 100);
                for (int i = 0; i < produce.count; i += size) {
                    List<Message> batch = new ArrayList<>();
                    for (int j = i; j < Math.min(i + size, produce.count); j++) batch.add(produce.message(j));
                    produce.print(i, routed(() -> producer.send(batch))).put("messages", batch.size()).print();
                }
                break;
            default:
                throw new IllegalArgumentException("no such --kind");
        }
        producer.shutdown();
    }

    private static void prepare(DefaultMQProducer producer) {
        producer.setSendMsgTimeout(10_000);
        // With the usual one it would send to queues that the topic does not have, when the name server is slow to answer.
        producer.setCreateTopicKey("helper-makes-no-topic");
    }

    /** Tries again while it has no route. */
    private static <T> T routed(Callable<T> send) throws Exception {
        long end = System.currentTimeMillis() + ROUTE_LIMIT_MS;
        while (true) {
            try {
                return send.call();
            } catch (MQClientException failure) {
                if (!lacksRoute(failure) || System.currentTimeMillis() > end) throw failure;
                Thread.sleep(50);
            }
        }
    }

    /** Of a transactional send, it is the cause that says so. */
    private static boolean lacksRoute(Throwable failure) {
        for (Throwable at = failure; at != null; at = at.getCause()) {
            String problem = at instanceof MQClientException ? ((MQClientException) at).getErrorMessage() : null;
            if (problem != null && problem.startsWith("No route info")) return true;
        }
        return false;
    }

    private String key(int i) {
        return keys.length == 0 ? "key-" + i : keys[i % keys.length];
    }

    private Message message(int i) {
        String body = bodies.length > 0 ? bodies[i % bodies.length] : "message-" + i;
        Message message = new Message(options.text("topic"), options.text("tag", ""), key(i), padded(body, options.number("bytes", 0)));
        for (String property : options.list("properties")) {
            String[] parts = property.split("=", 2);
            message.putUserProperty(parts[0], parts[1]);
        }
        if (options.has("delay-level")) message.setDelayTimeLevel(options.number("delay-level", 1));
        // The 4.x client has no method for it.
        if (options.has("delay-ms")) MessageAccessor.putProperty(message, "TIMER_DELAY_MS", options.text("delay-ms"));
        return message;
    }

    static byte[] padded(String body, int bytes) {
        byte[] start = body.getBytes(StandardCharsets.UTF_8);
        if (start.length >= bytes) return start;
        byte[] whole = new byte[bytes];
        java.util.Arrays.fill(whole, (byte) '.');
        System.arraycopy(start, 0, whole, 0, start.length);
        return whole;
    }

    private Json print(int i, SendResult sent) {
        return new Json()
            .put("index", i)
            .put("key", key(i))
            .put("status", sent.getSendStatus())
            .put("msgId", sent.getMsgId())
            .put("offsetMsgId", sent.getOffsetMsgId())
            .put("brokerName", sent.getMessageQueue().getBrokerName())
            .put("queueId", sent.getMessageQueue().getQueueId())
            .put("queueOffset", sent.getQueueOffset())
            .put("transactionId", sent.getTransactionId());
    }

    private static LocalTransactionState state(String name) {
        switch (name) {
            case "commit": return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback": return LocalTransactionState.ROLLBACK_MESSAGE;
            case "unknown": return LocalTransactionState.UNKNOW;
            default: throw new IllegalArgumentException("an outcome is commit, rollback or unknown");
        }
    }

    private void transactions() throws Exception {
        String[] outcomes = options.list("outcomes", "commit");
        String[] answers = options.list("answers", "commit");
        Map<String, Integer> unknown = new ConcurrentHashMap<>();
        for (int i = 0; i < count; i++) {
            if (outcomes[i % outcomes.length].equals("unknown")) unknown.put(String.valueOf(i), i);
        }
        CountDownLatch asked = new CountDownLatch(unknown.size());
        TransactionMQProducer producer =
            options.connected(new TransactionMQProducer(options.text("group", "helper-transactions"), options.credentials()));
        prepare(producer);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object index) {
                return state(outcomes[(Integer) index % outcomes.length]);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String index = message.getProperty("index");
                String answer = index == null ? "unknown" : answers[Integer.parseInt(index) % answers.length];
                Json.of(message).put("checkBack", answer).print();
                if (index != null && unknown.remove(index) != null) asked.countDown();
                return state(answer);
            }
        });
        producer.start();
        for (int i = 0; i < count; i++) {
            Message message = message(i);
            message.putUserProperty("index", String.valueOf(i));
            Integer number = i;
            TransactionSendResult sent = routed(() -> producer.sendMessageInTransaction(message, number));
            print(i, sent).put("state", sent.getLocalTransactionState()).print();
        }
        asked.await(options.number("seconds", 30), TimeUnit.SECONDS);
        Thread.sleep(200); // the answer to the last check-back goes out after the listener has returned
        producer.shutdown();
    }
}
