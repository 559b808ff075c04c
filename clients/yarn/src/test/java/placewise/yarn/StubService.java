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
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Stream;
import javax.net.ssl.SSLContext;

/**
 * A service for tests. It lets every gang wait until `placeOn`, and takes every report except those that `refuse`
 * names. Counts calls and bytes by the last word of the path, and keeps the bodies.
 */
final class StubService implements AutoCloseable {
  static final long SLOW_MS = 3_000;
  private final HttpServer server;
  private final Map<String, Long> calls = new LinkedHashMap<>();
  private final Map<String, List<JsonNode>> bodies = new TreeMap<>();
  private final Set<String> authorizations = new TreeSet<>();
  private final AtomicReference<String> fault = new AtomicReference<>("");
  private volatile String lasting = "";
  private volatile boolean isHung;
  private volatile String node = "";
  private volatile String unreadable = "";
  private volatile String held = "";
  private volatile String chosen = "";
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

  /**
   * Every gang that is asked about goes to this node; "": all wait, "NO_FIT": none fits an empty cluster, "NO_SHAPE": all
   * wait, because admission finds no shape for them.
   */
  void placeOn(String name) {
    node = name;
  }

  /** Gangs with this text in their id wait, also after `placeOn`. */
  void hold(String id) {
    held = id;
  }

  /** Gangs with this text in their id go to this node, all others wait. */
  void startOnly(String id, String name) {
    chosen = id;
    node = name;
  }

  /** A call that names this job or node fails with status 400. */
  void refuse(String id) {
    unreadable = id;
  }

  /** The bodies of the calls of this name, oldest first. */
  synchronized List<JsonNode> bodies(String name) {
    return new ArrayList<>(bodies.getOrDefault(name, Collections.emptyList()));
  }

  /** The Authorization headers of all calls; "" for a call without one. */
  synchronized Set<String> authorizations() {
    return new TreeSet<>(authorizations);
  }

  /** The next answer to a question is an error ("error"), comes after SLOW_MS ("slow"), or never ("lost"). */
  void spoilNext(String how) {
    fault.set(how);
  }

  /** The same of every answer to a question from now on; "" for none. */
  void spoilAll(String how) {
    lasting = how;
  }

  /** No call is answered any more. */
  void hang() {
    isHung = true;
  }

  boolean isSpoilt() {
    return fault.get().isEmpty();
  }

  /** Of the calls, in the order of the first of each. */
  synchronized List<String> names() {
    return new ArrayList<>(calls.keySet());
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
    String how = !isQuestion ? "" : lasting.isEmpty() ? fault.getAndSet("") : lasting;
    JsonNode asked = body.length == 0 ? ServiceClient.JSON.createObjectNode() : ServiceClient.JSON.readTree(body);
    byte[] answer = ServiceClient.JSON.writeValueAsBytes(isQuestion ? decided(asked) : ServiceClient.JSON.createObjectNode());
    synchronized (this) {
      calls.merge(name, 1L, Long::sum);
      authorizations.add(Objects.toString(exchange.getRequestHeaders().getFirst("Authorization"), ""));
      bodies.computeIfAbsent(name, key -> new ArrayList<>()).add(asked);
      bytes += body.length + answer.length;
    }
    if (isHung) {
      return;
    }
    if (how.equals("slow")) {
      pause();
    }
    if (!how.equals("lost")) {
      exchange.sendResponseHeaders(how.equals("error") ? 500 : isReadable(asked) ? 200 : 400, answer.length);
      exchange.getResponseBody().write(answer);
    }
    exchange.close();
  }

  private boolean isReadable(JsonNode asked) {
    String id = unreadable;
    return id.isEmpty() || Stream.of(asked.findValuesAsText("id"), asked.findValuesAsText("jobId"))
        .noneMatch(ids -> ids.contains(id));
  }

  private static void pause() {
    try {
      Thread.sleep(SLOW_MS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  private ObjectNode decided(JsonNode question) {
    String where = node;
    ObjectNode answer = ServiceClient.JSON.createObjectNode();
    answer.putObject("meta").put("decisionId", "decision");
    ArrayNode admissions = answer.putArray("admissions");
    ArrayNode decisions = answer.putObject("placed").putArray("decisions");
    for (JsonNode job : question.path("jobs")) {
      String id = job.path("id").asText();
      boolean hasShape = !where.equals("NO_SHAPE");
      boolean isHeld = where.isEmpty() || !held.isEmpty() && id.contains(held) || !id.contains(chosen);
      ObjectNode admission = admissions.addObject().put("jobId", id);
      admission.put("verdict", isHeld || !hasShape ? "WAIT" : "ADMIT");
      if (!hasShape) {
        admission.putArray("blockers").addObject().put("reason", "NO_FEASIBLE_SHAPE").put("message", "no shape fits");
        continue;
      }
      ObjectNode decision = decisions.addObject().put("jobId", id);
      decision.put("outcome", where.equals("NO_FIT") ? where : "PLACED").put("reservationId", "of " + id);
      int tasks = job.path("groups").findValues("count").stream().mapToInt(JsonNode::asInt).sum();
      ArrayNode assignments = decision.putArray("assignments");
      for (int i = 0; i < tasks; i++) {
        assignments.addObject().put("task", "worker-" + i).put("node", where);
      }
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
