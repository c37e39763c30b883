package outhaul;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** How fast Apache's client sends batches when nothing else is asked of it: one batch in flight for each thread, by default one. */
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

    /** The nanoseconds that each batch took, from making its messages to its answer. Each thread has queues of its own. */
    private static long[] send(DefaultMQProducer producer, List<MessageQueue> queues, Options options, int count, int size) throws Exception {
        long[] nanos = new long[(count + size - 1) / size];
        int threads = Math.min(options.number("threads", 1), queues.size());
        List<Future<?>> running = new ArrayList<>();
        try (Workers workers = new Workers(threads)) {
            for (int thread = 0; thread < threads; thread++) {
                int first = thread;
                running.add(workers.pool.submit(() -> {
                    for (int batch = first; batch < nanos.length; batch += threads) {
                        long begin = System.nanoTime();
                        List<Message> messages = new ArrayList<>(size);
                        for (int i = batch * size; i < Math.min(count, (batch + 1) * size); i++) messages.add(message(options, i));
                        SendResult sent = producer.send(messages, queues.get(batch % queues.size()));
                        if (sent.getSendStatus() != SendStatus.SEND_OK) throw new IllegalStateException("" + sent);
                        nanos[batch] = System.nanoTime() - begin;
                    }
                    return null;
                }));
            }
            for (Future<?> one : running) one.get();
        }
        return nanos;
    }

    private static final class Workers implements AutoCloseable {
        final ExecutorService pool;

        Workers(int threads) {
            pool = Executors.newFixedThreadPool(threads);
        }

        @Override
        public void close() {
            pool.shutdownNow();
        }
    }

    /** With `--like-outhaul`, the properties of a message that Outhaul sends. */
    private static Message message(Options options, int i) {
        String key = "user-" + i % 5_000;
        byte[] body = Produce.padded("message-" + i, options.number("bytes", 300));
        if (!options.has("like-outhaul")) return new Message(options.text("topic"), "", key, body);
        String digits = Integer.toHexString(i); // String.format would cost more than the send
        String id = "0192f0c1-5a7e-7b3c-8d4e-" + "000000000000".substring(digits.length()) + digits;
        Message message = new Message(options.text("topic"), "", id + " " + key, body);
        message.putUserProperty("outhaul-id", id);
        message.putUserProperty("outhaul-key", key);
        message.putUserProperty("outhaul-position", "0:" + i);
        return message;
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
