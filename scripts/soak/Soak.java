// A server whose answers a client can check, beside threads that check their own work: for scripts/soak.sh.
// GET /crc?seed=N: CRC-32 of 4,000 bytes made from the seed. GET /state: rounds and errors of the workers.
// usage: java Soak PORT; all work is paced, so that the machine is never full
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import java.util.zip.CRC32;
import java.util.zip.DataFormatException;
import java.util.zip.Deflater;
import java.util.zip.Inflater;

public class Soak {
    static final AtomicLong rounds = new AtomicLong(), errors = new AtomicLong();

    static byte[] bytes(int seed) {
        byte[] made = new byte[4000];
        int value = seed;
        for (int i = 0; i < made.length; i++) {
            value = value * 1664525 + 1013904223;
            made[i] = (byte) (value >>> 24);
        }
        return made;
    }

    static long crc(byte[] of) {
        CRC32 crc = new CRC32();
        crc.update(of);
        return crc.getValue();
    }

    static void check(boolean right) {
        if (!right) errors.incrementAndGet();
    }

    /** One round of each: sort, join, compress there and back, throw and catch. */
    static void work(Random random) throws DataFormatException {
        TreeMap<Integer, String> tree = new TreeMap<>();
        Map<Integer, String> hash = new HashMap<>();
        for (int i = 0; i < 200; i++) {
            int key = random.nextInt(1000);
            tree.put(key, "v" + key);
            hash.put(key, "v" + key);
        }
        check(tree.equals(hash));
        ArrayList<Integer> keys = new ArrayList<>(hash.keySet());
        keys.sort(null);
        check(keys.equals(new ArrayList<>(tree.keySet())));
        check(tree.values().stream().collect(Collectors.joining(",")).split(",").length == tree.size());

        byte[] before = bytes(random.nextInt()), packed = new byte[8000], after = new byte[before.length];
        Deflater deflater = new Deflater(1);
        deflater.setInput(before);
        deflater.finish();
        int length = deflater.deflate(packed);
        deflater.end();
        Inflater inflater = new Inflater();
        inflater.setInput(packed, 0, length);
        check(inflater.inflate(after) == before.length);
        inflater.end();
        check(crc(before) == crc(after));
        try {
            keys.get(keys.size());
            check(false);
        } catch (IndexOutOfBoundsException expected) {
            check(expected.getStackTrace().length > 0);
        }
        rounds.incrementAndGet();
    }

    static void answer(HttpExchange exchange, String text) throws IOException {
        exchange.sendResponseHeaders(200, text.length());
        exchange.getResponseBody().write(text.getBytes());
        exchange.close();
    }

    public static void main(String[] arguments) throws Exception {
        int port = Integer.parseInt(arguments[0]);
        for (int worker = 0; worker < 3; worker++) {
            Random random = new Random(worker);
            Thread thread = new Thread(() -> {
                while (true) {
                    try {
                        work(random);
                        long before = System.nanoTime();
                        Thread.sleep(20);
                        check(System.nanoTime() - before >= 20_000_000);
                    } catch (Exception failed) {
                        errors.incrementAndGet();
                    }
                }
            }, "worker-" + worker);
            thread.setDaemon(true);
            thread.start();
        }
        HttpServer server = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), port), 50);
        // Its threads end after an idle minute and come again.
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/crc", exchange -> {
            int seed = Integer.parseInt(exchange.getRequestURI().getQuery().substring("seed=".length()));
            answer(exchange, Long.toString(crc(bytes(seed))));
        });
        server.createContext("/state", exchange -> answer(exchange, rounds.get() + " " + errors.get()));
        server.start();
    }
}
