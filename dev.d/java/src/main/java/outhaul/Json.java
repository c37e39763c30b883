package outhaul;

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageExt;

/** One JSON object, printed as one line. */
final class Json {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private final StringBuilder text = new StringBuilder("{");

    /** A string, a number, a boolean, null, or a map of such. */
    Json put(String name, Object value) {
        if (text.length() > 1) text.append(',');
        append(name);
        text.append(':');
        append(value);
        return this;
    }

    private void append(Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            text.append(value);
        } else if (value instanceof Map) {
            Json map = new Json();
            ((Map<?, ?>) value).forEach((key, inner) -> map.put(String.valueOf(key), inner));
            text.append(map.text).append('}');
        } else {
            text.append('"');
            for (char c : value.toString().toCharArray()) {
                if (c == '"' || c == '\\') text.append('\\').append(c);
                else if (c < ' ') text.append(String.format("\\u%04x", (int) c));
                else text.append(c);
            }
            text.append('"');
        }
    }

    /** All that a consumer sees of a message. */
    static Json of(MessageExt message) {
        return new Json()
            .put("topic", message.getTopic())
            .put("msgId", message.getMsgId())
            .put("uniqKey", message.getProperty("UNIQ_KEY"))
            .put("keys", message.getKeys())
            .put("tags", message.getTags())
            .put("properties", new TreeMap<>(message.getProperties()))
            .put("body", message.getBody() == null ? null : Base64.getEncoder().encodeToString(message.getBody()))
            .put("brokerName", message.getBrokerName())
            .put("queueId", message.getQueueId())
            .put("queueOffset", message.getQueueOffset())
            .put("commitLogOffset", message.getCommitLogOffset())
            .put("sysFlag", message.getSysFlag())
            .put("flag", message.getFlag())
            .put("reconsumeTimes", message.getReconsumeTimes())
            .put("bornTimestamp", message.getBornTimestamp())
            .put("storeTimestamp", message.getStoreTimestamp());
    }

    void print() {
        synchronized (OUT) {
            OUT.print(text.append("}\n"));
            OUT.flush();
        }
    }
}
