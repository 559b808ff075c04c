package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicReference;
import javax.net.ssl.SSLContext;

/** A service that lets every gang wait, takes every report, and counts calls and bytes by the last word of the path. */
final class StubService implements AutoCloseable {
  static final long SLOW_MS = 3_000;
  private final HttpServer server;
  private final Map<String, Long> calls = new TreeMap<>();
  private final AtomicReference<String> fault = new AtomicReference<>("");
  private long bytes;

  /** Listens on this port of loopback; 0 takes a free one. */
  StubService(int port) throws IOException {
    this(HttpServer.create(address(port), 0));
  }

  /** Speaks TLS on a free port. */
  StubService(SSLContext context) throws IOException {
    this(secure(context));
  }

  private StubService(HttpServer made) {
    server = made;
    server.setExecutor(Executors.newCachedThreadPool(task -> {
      Thread thread = new Thread(task, "stub-service");
      thread.setDaemon(true);
      return thread;
    }));
    server.createContext("/", this::serve);
    server.start();
  }

  private static InetSocketAddress address(int port) {
    return new InetSocketAddress(InetAddress.getLoopbackAddress(), port);
  }

  private static HttpServer secure(SSLContext context) throws IOException {
    HttpsServer made = HttpsServer.create(address(0), 0);
    made.setHttpsConfigurator(new HttpsConfigurator(context));
    return made;
  }

  String url() {
    return (server instanceof HttpsServer ? "https" : "http") + "://127.0.0.1:" + server.getAddress().getPort();
  }

  /** The next answer to a question is an error ("error") or comes after SLOW_MS ("slow"). */
  void spoilNext(String how) {
    fault.set(how);
  }

  boolean isSpoilt() {
    return fault.get().isEmpty();
  }

  synchronized Set<String> names() {
    return calls.keySet();
  }

  synchronized long calls(String name) {
    return calls.getOrDefault(name, 0L);
  }

  /** Calls by name, and the bytes of all bodies, since the start. */
  synchronized ObjectNode counts() {
    ObjectNode counts = ServiceClient.JSON.createObjectNode().put("bytes", bytes);
    calls.forEach(counts::put);
    return counts;
  }

  private void serve(HttpExchange exchange) throws IOException {
    byte[] body = read(exchange.getRequestBody());
    String path = exchange.getRequestURI().getPath();
    String name = path.substring(path.lastIndexOf('/') + 1);
    boolean isQuestion = name.equals("jobs:admitOrWait");
    String how = isQuestion ? fault.getAndSet("") : "";
    byte[] answer = ServiceClient.JSON.writeValueAsBytes(isQuestion ? allWait(body) : ServiceClient.JSON.createObjectNode());
    if (how.equals("slow")) {
      pause();
    }
    exchange.sendResponseHeaders(how.equals("error") ? 500 : 200, answer.length);
    exchange.getResponseBody().write(answer);
    exchange.close();
    synchronized (this) {
      calls.merge(name, 1L, Long::sum);
      bytes += body.length + answer.length;
    }
  }

  private static void pause() {
    try {
      Thread.sleep(SLOW_MS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  private static ObjectNode allWait(byte[] question) throws IOException {
    ObjectNode answer = ServiceClient.JSON.createObjectNode();
    answer.putObject("meta").put("decisionId", "decision");
    ArrayNode admissions = answer.putArray("admissions");
    for (JsonNode job : ServiceClient.JSON.readTree(question).path("jobs")) {
      admissions.addObject().put("jobId", job.path("id").asText()).put("verdict", "WAIT");
    }
    return answer;
  }

  private static byte[] read(InputStream stream) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    byte[] part = new byte[65_536];
    for (int count = stream.read(part); count >= 0; count = stream.read(part)) {
      bytes.write(part, 0, count);
    }
    return bytes.toByteArray();
  }

  @Override
  public void close() {
    server.stop(0);
  }
}
