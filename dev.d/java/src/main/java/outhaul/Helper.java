package outhaul;

import java.util.Map;

/** Apache's own client on the command line: results as JSON lines on standard output, all else on standard error. */
public final class Helper {
    private interface Command {
        void run(Options options) throws Exception;
    }

    private static final Map<String, Command> COMMANDS = Map.of(
        "topic", Admin::topic,
        "query", Admin::query,
        "config", Admin::config,
        "produce", Produce::run,
        "consume", Consume::run,
        "bench", Bench::run);

    private static final String USAGE = String.join("\n",
        "topic    --namesrv A --topic T [--queues N=8] [--brokers NAME,..: all masters]",
        "         makes or changes a topic, and waits until the name server knows its route",
        "config   --broker HOST:PORT NAME=VALUE...     UPDATE_BROKER_CONFIG at run time",
        "query    --namesrv A --topic T (--unique-key K | --offset-id I | --key K)",
        "         the messages that the admin tool finds",
        "produce  --namesrv A --topic T [--kind single] [--count N=1] [--keys K,..] [--bodies B,.. | --bytes N]",
        "         [--tag T] [--properties NAME=VALUE,..] [--batch N=100]",
        "         kind: single; batch (of --batch messages); ordered (queue by SelectMessageQueueByHash of the key);",
        "         delayed (--delay-level L or, 5.x, --delay-ms D);",
        "         transaction (--outcomes commit,rollback,unknown  --answers commit,.. to check-backs; stays until each",
        "         unknown one was asked about, --seconds at most). Lists are gone through again and again",
        "consume  --namesrv A --topic T [--group G] [--mode concurrent | orderly] [--count N] [--seconds S=30] [--tags E=*]",
        "         from the first offset on; ends after N messages or S seconds, whichever is first",
        "bench    --namesrv A --topic T [--count N=100000] [--warmup N=20000] [--batch N=200] [--bytes N=300] [--threads N=1] [--like-outhaul yes]",
        "         [--queues Q: all] one thread, one batch in flight, round robin over the queues",
        "all      [--access-key K --secret-key S] [--tls] (it trusts any server, unless these stand before the command:",
        "         -Dtls.test.mode.enable=false -Dtls.client.authServer=true -Dtls.client.trustCertPath=FILE)");

    public static void main(String[] arguments) {
        int status = 0;
        try {
            Command command = arguments.length == 0 ? null : COMMANDS.get(arguments[0]);
            if (command == null) throw new IllegalArgumentException("commands:");
            command.run(new Options(arguments));
        } catch (IllegalArgumentException wrong) {
            System.err.println(wrong.getMessage() + "\n" + USAGE);
            status = 2;
        } catch (Throwable failure) {
            failure.printStackTrace();
            status = 1;
        }
        System.out.flush();
        System.exit(status); // the client leaves threads behind
    }
}
