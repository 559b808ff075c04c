package placewise.yarn;

import java.io.IOException;
import java.net.InetAddress;
import java.net.URI;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;

/** The `placewise.*` properties of yarn-site.xml. Names and meanings are those of the Python SDK's AdapterSettings. */
final class Settings {
  static final String TOKEN = "placewise.token";
  private static final String TRUST_STORE_PASSWORD = "placewise.trust-store-password";

  final String url;
  final String cluster;
  final Set<String> queues;
  final long decideBudgetMs;
  final long releaseAfterMs;
  final long resyncMs;
  final long nodeRefreshMs;
  final long retryMs;
  final long startTimeoutMs;
  final long gangTimeoutMs;
  final long reserveTtlMs;
  final int batch;
  final int depth;
  private final int priorFrom;
  private final int urgentFrom;
  final String placePolicy;
  final String admitPolicy;
  final boolean isDryRun;
  final boolean isNoFitReleased;
  final boolean isUnshapeableReleased;
  final String tokenFile;
  final String trustStore;
  final boolean isPlaintextAllowed;
  private final Configuration configuration;
  private final Set<String> known = new TreeSet<>();

  /** Throws IllegalArgumentException if a property cannot be used; the message names it. */
  Settings(Configuration configuration) {
    this.configuration = configuration;
    url = trimmed(text("placewise.url", "http://127.0.0.1:8080"));
    cluster = text("placewise.cluster", "yarn");
    known.add("placewise.queues");
    queues = new TreeSet<>(configuration.getTrimmedStringCollection("placewise.queues"));
    decideBudgetMs = positive("placewise.decide-budget-ms", 100);
    releaseAfterMs = number("placewise.release-after-ms", 10_000);
    resyncMs = positive("placewise.resync-ms", 10_000);
    nodeRefreshMs = positive("placewise.node-refresh-ms", 15_000);
    retryMs = positive("placewise.retry-ms", 1_000);
    startTimeoutMs = positive("placewise.start-timeout-ms", 30_000);
    gangTimeoutMs = positive("placewise.gang-timeout-ms", 30_000);
    reserveTtlMs = positive("placewise.reserve-ttl-ms", 60_000);
    batch = (int) positive("placewise.batch", 16);
    depth = (int) positive("placewise.depth", 256);
    priorFrom = (int) number("placewise.prior-from", 1);
    urgentFrom = (int) number("placewise.urgent-from", Integer.MAX_VALUE);
    placePolicy = text("placewise.place-policy", "");
    admitPolicy = text("placewise.admit-policy", "fifo");
    isDryRun = flag("placewise.dry-run", false);
    isNoFitReleased = flag("placewise.release-no-fit", true);
    isUnshapeableReleased = flag("placewise.release-unshapeable", false);
    tokenFile = text("placewise.token-file", "");
    trustStore = text("placewise.trust-store", "");
    isPlaintextAllowed = flag("placewise.allow-plaintext", false);
    check();
  }

  private static String trimmed(String url) {
    return url.endsWith("/") ? url.substring(0, url.length() - 1) : url;
  }

  private String text(String name, String otherwise) {
    known.add(name);
    return configuration.getTrimmed(name, otherwise);
  }

  private long number(String name, long otherwise) {
    known.add(name);
    try {
      return configuration.getLong(name, otherwise);
    } catch (NumberFormatException error) {
      throw new IllegalArgumentException(name + ": must be a whole number, not " + configuration.get(name));
    }
  }

  /** The longest that one question about so many gangs may take. */
  long budgetMs(int gangs) {
    return decideBudgetMs * ((gangs + batch - 1) / batch);
  }

  private long positive(String name, long otherwise) {
    long value = number(name, otherwise);
    if (value <= 0) {
      throw new IllegalArgumentException(name + ": must be above 0, not " + value);
    }
    return value;
  }

  /** Hadoop takes the default for a word that it cannot read: a dry run would not be one. */
  private boolean flag(String name, boolean otherwise) {
    String value = text(name, Boolean.toString(otherwise));
    if (!"true".equalsIgnoreCase(value) && !"false".equalsIgnoreCase(value)) {
      throw new IllegalArgumentException(name + ": must be true or false, not " + value);
    }
    return Boolean.parseBoolean(value);
  }

  /** Properties that are called placewise.… and are no setting: misspelt ones. */
  Set<String> unknown() {
    Set<String> unknown = new TreeSet<>(configuration.getValByRegex("^placewise\\.").keySet());
    unknown.removeAll(known);
    unknown.remove(TRUST_STORE_PASSWORD);
    return unknown;
  }

  private void check() {
    // The ResourceManager shows its whole configuration to everybody under /conf.
    if (configuration.getRaw(TOKEN) != null) {
      throw new IllegalArgumentException(
          TOKEN + ": everybody can read yarn-site.xml under the ResourceManager's /conf; remove the property, and set"
              + " placewise.token-file, or put the token into Hadoop's credential provider under this name");
    }
    if (!url.startsWith("http://") && !url.startsWith("https://")) {
      throw new IllegalArgumentException("placewise.url: must begin with http:// or https://, not " + url);
    }
    URI address = address();
    if ("http".equals(address.getScheme()) && !isPlaintextAllowed && !isLoopback(address.getHost())) {
      throw new IllegalArgumentException(
          "placewise.url: " + url + " is clear text to another machine; use https://, or set"
              + " placewise.allow-plaintext to true if the network is guarded otherwise");
    }
  }

  private URI address() {
    try {
      return URI.create(url);
    } catch (IllegalArgumentException error) {
      throw new IllegalArgumentException("placewise.url: " + error.getMessage());
    }
  }

  private static boolean isLoopback(String host) {
    try {
      return host != null && InetAddress.getByName(host).isLoopbackAddress();
    } catch (UnknownHostException error) {
      return false;
    }
  }

  /** Service class of an application of this priority in YARN. */
  String priority(int ofApplication) {
    return ofApplication >= urgentFrom ? "URGENT" : ofApplication >= priorFrom ? "PRIOR" : "NORMAL";
  }

  /** The token, read again each time so that it can be renewed; "" if there is none. */
  String token() throws IOException {
    if (!tokenFile.isEmpty()) {
      return new String(Files.readAllBytes(Paths.get(tokenFile)), StandardCharsets.UTF_8).trim();
    }
    char[] kept = configuration.getPassword(TOKEN);
    return kept == null ? "" : new String(kept);
  }

  /** Password of the trust store, from Hadoop's credential provider; null if there is none. */
  char[] trustStorePassword() throws IOException {
    return configuration.getPassword(TRUST_STORE_PASSWORD);
  }
}
