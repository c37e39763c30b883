package outhaul;

import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/** A push consumer that prints what it gets, one line a message, in the order in which it gets them. */
final class Consume {
    static void run(Options options) throws Exception {
        String group = options.text("group", "helper-" + ProcessHandle.current().pid() + "-" + System.currentTimeMillis());
        int count = options.number("count", Integer.MAX_VALUE);
        CountDownLatch enough = new CountDownLatch(count);
        DefaultMQPushConsumer consumer =
            options.connected(new DefaultMQPushConsumer(group, options.credentials(), new AllocateMessageQueueAveragely()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(options.text("topic"), options.text("tags", "*"));
        switch (options.text("mode", "concurrent")) {
            case "concurrent":
                consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                    print(messages, enough);
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                break;
            case "orderly":
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    print(messages, enough);
                    return ConsumeOrderlyStatus.SUCCESS;
                });
                break;
            default:
                throw new IllegalArgumentException("--mode is concurrent or orderly");
        }
        consumer.start();
        enough.await(options.number("seconds", 30), TimeUnit.SECONDS);
        consumer.shutdown(); // stores the offsets
    }

    private static void print(List<MessageExt> messages, CountDownLatch enough) {
        long now = System.currentTimeMillis();
        for (MessageExt message : messages) {
            Json.of(message).put("receivedTimestamp", now).print();
            enough.countDown();
        }
    }
}
