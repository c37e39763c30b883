package outhaul;

import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What an operator's tool does. `var`: the two versions have these classes in different packages. */
final class Admin {
    private static final long ROUTE_LIMIT_MS = 20_000;

    private static DefaultMQAdminExt start(Options options) throws Exception {
        DefaultMQAdminExt admin = options.connected(new DefaultMQAdminExt(options.credentials()));
        admin.start();
        return admin;
    }

    static void topic(Options options) throws Exception {
        DefaultMQAdminExt admin = start(options);
        String topic = options.text("topic");
        int queues = options.number("queues", 8);
        Set<String> wanted = new HashSet<>(List.of(options.list("brokers")));
        Set<String> made = new HashSet<>();
        for (var broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values()) {
            String master = broker.getBrokerAddrs().get(0L);
            if (master == null || !wanted.isEmpty() && !wanted.contains(broker.getBrokerName())) continue;
            admin.createAndUpdateTopicConfig(master, new TopicConfig(topic, queues, queues, 6));
            made.add(broker.getBrokerName());
        }
        if (made.isEmpty() || !made.containsAll(wanted)) throw new IllegalStateException("there are only the masters " + made);
        long end = System.currentTimeMillis() + ROUTE_LIMIT_MS;
        while (!routed(admin, topic, queues, made)) {
            if (System.currentTimeMillis() > end) throw new IllegalStateException("the name server does not know the topic");
            Thread.sleep(20);
        }
        new Json().put("topic", topic).put("queues", queues * made.size()).print();
    }

    private static boolean routed(DefaultMQAdminExt admin, String topic, int queues, Set<String> brokers) {
        try {
            Set<String> found = new HashSet<>();
            for (var queue : admin.examineTopicRouteInfo(topic).getQueueDatas()) {
                if (queue.getWriteQueueNums() == queues) found.add(queue.getBrokerName());
            }
            return found.containsAll(brokers);
        } catch (Exception notYet) {
            return false;
        }
    }

    static void config(Options options) throws Exception {
        Properties settings = new Properties();
        for (String word : options.words) {
            String[] parts = word.split("=", 2);
            if (parts.length < 2) throw new IllegalArgumentException("not NAME=VALUE: " + word);
            settings.put(parts[0], parts[1]);
        }
        start(options).updateBrokerConfig(options.text("broker"), settings);
        new Json().put("changed", settings.size()).print();
    }

    static void query(Options options) throws Exception {
        DefaultMQAdminExt admin = start(options);
        String topic = options.text("topic");
        if (options.has("key")) {
            for (MessageExt message : admin.queryMessage(topic, options.text("key"), 64, 0, Long.MAX_VALUE).getMessageList()) {
                Json.of(message).print();
            }
        } else { // it knows the one kind of id from the other
            Json.of(admin.viewMessage(topic, options.has("offset-id") ? options.text("offset-id") : options.text("unique-key"))).print();
        }
    }
}
