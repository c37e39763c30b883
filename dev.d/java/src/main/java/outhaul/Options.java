package outhaul;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/** What stands behind the command: `--name value`, the switch `--tls`, and plain words. */
final class Options {
    private final Map<String, String> named = new HashMap<>();
    final List<String> words = new ArrayList<>();

    Options(String[] arguments) {
        for (int i = 1; i < arguments.length; i++) {
            if (arguments[i].equals("--tls")) named.put("tls", "");
            else if (!arguments[i].startsWith("--")) words.add(arguments[i]);
            else if (i + 1 < arguments.length) named.put(arguments[i].substring(2), arguments[++i]);
            else throw new IllegalArgumentException(arguments[i] + " needs a value");
        }
    }

    boolean has(String name) {
        return named.containsKey(name);
    }

    String text(String name) {
        if (!has(name)) throw new IllegalArgumentException("--" + name + " is missing");
        return named.get(name);
    }

    String text(String name, String otherwise) {
        return named.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        return has(name) ? Integer.parseInt(named.get(name)) : otherwise;
    }

    /** Values between commas, or what stands for none. */
    String[] list(String name, String... otherwise) {
        return has(name) ? named.get(name).split(",", -1) : otherwise;
    }

    RPCHook credentials() {
        return has("access-key") ? new AclClientRPCHook(new SessionCredentials(text("access-key"), text("secret-key"))) : null;
    }

    /** A name of its own for each client: two in one process would share their connections otherwise. */
    <C extends ClientConfig> C connected(C client) {
        client.setNamesrvAddr(text("namesrv"));
        client.setInstanceName("helper-" + ProcessHandle.current().pid() + "-" + System.nanoTime());
        client.setVipChannelEnabled(false);
        // A consumer's first rebalance can miss its heartbeat (5.5.0), and its pulls are refused until the next one.
        client.setHeartbeatBrokerInterval(1_000);
        client.setMqClientApiTimeout(20_000); // on a machine that builds at the same time
        client.setUseTLS(has("tls"));
        return client;
    }
}
