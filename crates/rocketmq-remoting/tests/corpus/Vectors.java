import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SortedMap;
import java.util.TreeMap;
import org.apache.rocketmq.acl.common.AclSigner;
import org.apache.rocketmq.acl.common.AclUtils;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.header.SendMessageRequestHeaderV2;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/**
 * What RocketMQ's own classes (4.9.4) make of known input: tests/replay.rs compares. Run it with the broker's jars:
 * java -cp 'lib/*' Vectors.java FOLDER
 */
public class Vectors {
    static Path folder;

    public static void main(String[] arguments) throws Exception {
        folder = Path.of(arguments[0]);
        for (CompressionType type : CompressionType.values()) {
            MessageExt message = stored("127.0.0.1", "10.0.0.1");
            byte[] body = CompressorFactory.getCompressor(type).compress(body(), 5);
            message.setBody(body);
            message.setBodyCRC(UtilAll.crc32(body));
            message.setSysFlag(MessageSysFlag.COMPRESSED_FLAG | type.getCompressionFlag());
            write("stored-" + type.name().toLowerCase(), MessageDecoder.encode(message, false));
        }
        MessageExt v6 = stored("2001:db8::1", "2001:db8::2");
        v6.setBornHostV6Flag();
        v6.setStoreHostAddressV6Flag();
        v6.setBodyCRC(UtilAll.crc32(v6.getBody()));
        write("stored-ipv6", MessageDecoder.encode(v6, false));

        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = new Message("Orders", "tag" + i, "key" + i, ("body " + i).getBytes(StandardCharsets.UTF_8));
            message.setFlag(i);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, "unique" + i);
            batch.add(message);
        }
        write("batch", MessageDecoder.encodeMessages(batch));

        SendMessageRequestHeaderV2 header = new SendMessageRequestHeaderV2();
        header.setA("group");
        header.setB("Orders");
        header.setC("TBW102");
        header.setD(4);
        header.setE(2);
        header.setF(0);
        header.setG(1700000000000L);
        header.setH(0);
        header.setI("KEYS\u00011\u0002TAGS\u0001ä");
        header.setJ(0);
        header.setK(false);
        header.setM(false);
        for (SerializeType type : SerializeType.values()) {
            RemotingCommand command = RemotingCommand.createRequestCommand(310, header);
            command.setSerializeTypeCurrentRPC(type);
            command.setBody(body());
            command.setOpaque(77);
            command.setRemark("Grüße");
            ByteBuffer frame = command.encode();
            byte[] bytes = new byte[frame.remaining()];
            frame.get(bytes);
            write("request-" + type.name().toLowerCase(), bytes);
        }

        StringBuilder facts = new StringBuilder();
        for (String text : Arrays.asList("", "a", "hello", "polygenelubricants", "user-4711", "ä", "日本語", "\ud83d\ude00", "x".repeat(300))) {
            facts.append("hash\t").append(text).append('\t').append(text.hashCode()).append('\n');
            for (int count : new int[] {1, 2, 3, 7, 8, 16, 1000}) {
                List<MessageQueue> queues = new ArrayList<>();
                for (int i = 0; i < count; i++) {
                    queues.add(new MessageQueue("Orders", "a", i));
                }
                int chosen = new SelectMessageQueueByHash().select(queues, null, text).getQueueId();
                facts.append("queue\t").append(text).append('\t').append(count).append('\t').append(chosen).append('\n');
            }
        }
        RemotingCommand signed = RemotingCommand.createRequestCommand(34, null);
        signed.setBody("body ä".getBytes(StandardCharsets.UTF_8));
        SortedMap<String, String> fields = new TreeMap<>();
        fields.put("AccessKey", "app");
        fields.put("SecurityToken", "token");
        fields.put("b", "Orders");
        fields.put("a", "group ä");
        fields.put("Z", "last");
        facts.append("signature\tsecret\t").append(AclSigner.calSignature(AclUtils.combineRequestContent(signed, fields), "secret")).append('\n');
        Files.writeString(folder.resolve("facts.txt"), facts);
        System.exit(0);
    }

    static byte[] body() {
        return "from the outbox, ".repeat(60).getBytes(StandardCharsets.UTF_8);
    }

    static MessageExt stored(String store, String born) throws Exception {
        MessageExt message = new MessageExt();
        message.setTopic("Orders");
        message.setBody(body());
        message.setKeys(Arrays.asList("one", "two"));
        message.setTags("paid");
        message.setFlag(7);
        message.setQueueId(3);
        message.setQueueOffset(1L << 33);
        message.setCommitLogOffset(1L << 34);
        message.setBornTimestamp(1700000000000L);
        message.setStoreTimestamp(1700000000001L);
        message.setBornHost(new InetSocketAddress(InetAddress.getByName(born), 50000));
        message.setStoreHost(new InetSocketAddress(InetAddress.getByName(store), 10911));
        message.setReconsumeTimes(2);
        message.setPreparedTransactionOffset(5);
        message.putUserProperty("name", "wert ä");
        return message;
    }

    static void write(String name, byte[] bytes) throws Exception {
        Files.write(folder.resolve(name + ".bin"), bytes);
    }
}
