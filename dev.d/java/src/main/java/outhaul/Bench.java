package outhaul;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** How fast Apache's client sends batches when nothing else is asked of it: one thread, one batch in flight. */
final class Bench {
    static void run(Options options) throws Exception {
        int count = options.number("count", 100_000);
        int size = options.number("batch", 200);
        DefaultMQProducer producer = options.connected(new DefaultMQProducer("helper-bench", options.credentials()));
        producer.setSendMsgTimeout(30_000);
        producer.setMaxMessageSize(16 << 20);
        producer.start();
        List<MessageQueue> queues = producer.fetchPublishMessageQueues(options.text("topic"));
        queues = queues.subList(0, Math.min(queues.size(), options.number("queues", queues.size())));

        send(producer, queues, options, options.number("warmup", 20_000), size);
        long begin = System.nanoTime();
        long[] nanos = send(producer, queues, options, count, size);
        double seconds = (System.nanoTime() - begin) / 1e9;
        Arrays.sort(nanos);
        new Json()
            .put("messages", count)
            .put("batches", nanos.length)
            .put("queues", queues.size())
            .put("seconds", seconds)
            .put("messagesPerSecond", count / seconds)
            .put("p50Ms", percentile(nanos, 50))
            .put("p99Ms", percentile(nanos, 99))
            .put("maxMs", percentile(nanos, 100))
            .put("peakRssKib", peakRssKib())
            .put("cpuSeconds", ProcessHandle.current().info().totalCpuDuration().map(d -> d.toMillis() / 1e3).orElse(0.0))
            .print();
        producer.shutdown();
    }

    /** The nanoseconds that each batch took, from making its messages to its answer. */
    private static long[] send(DefaultMQProducer producer, List<MessageQueue> queues, Options options, int count, int size) throws Exception {
        String topic = options.text("topic");
        int bytes = options.number("bytes", 300);
        long[] nanos = new long[(count + size - 1) / size];
        for (int batch = 0; batch < nanos.length; batch++) {
            long begin = System.nanoTime();
            List<Message> messages = new ArrayList<>(size);
            for (int i = batch * size; i < Math.min(count, (batch + 1) * size); i++) {
                messages.add(new Message(topic, "", "key-" + i % 5_000, Produce.padded("message-" + i, bytes)));
            }
            SendResult sent = producer.send(messages, queues.get(batch % queues.size()));
            if (sent.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException("" + sent);
            nanos[batch] = System.nanoTime() - begin;
        }
        return nanos;
    }

    private static double percentile(long[] sorted, int percent) {
        if (sorted.length == 0) return 0;
        return sorted[(int) Math.min(sorted.length - 1, (long) sorted.length * percent / 100)] / 1e6;
    }

    private static long peakRssKib() throws Exception {
        for (String line : Files.readAllLines(Path.of("/proc/self/status"))) {
            if (line.startsWith("VmHWM:")) return Long.parseLong(line.replaceAll("\\D", ""));
        }
        return 0;
    }
}
