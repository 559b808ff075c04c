package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.HttpURLConnection;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.HttpsURLConnection;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLSocketFactory;
import javax.net.ssl.TrustManagerFactory;

/** The service's REST client. A call ends within its budget, even if the service hangs. Not for YARN's threads. */
final class ServiceClient implements AutoCloseable {
  static final ObjectMapper JSON = new ObjectMapper();
  private static final int LARGEST_ANSWER = 256 << 20;
  private final Settings settings;
  private final String base;
  private final SSLSocketFactory sockets;
  // A budget ends while a socket still blocks: the call runs aside, and its connection is cut.
  private final ExecutorService callers =
      Executors.newCachedThreadPool(
          task -> {
            Thread thread = new Thread(task, "placewise-call");
            thread.setDaemon(true);
            return thread;
          });

  ServiceClient(Settings settings) {
    this.settings = settings;
    base = settings.url + "/v1/clusters/" + settings.cluster;
    sockets = settings.trustStore.isEmpty() ? null : trusting(settings);
  }

  private static SSLSocketFactory trusting(Settings settings) {
    try (InputStream file = Files.newInputStream(Paths.get(settings.trustStore))) {
      KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
      store.load(file, settings.trustStorePassword());
      TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
      trust.init(store);
      SSLContext context = SSLContext.getInstance("TLS");
      context.init(null, trust.getTrustManagers(), null);
      return context.getSocketFactory();
    } catch (IOException | GeneralSecurityException error) {
      throw new IllegalArgumentException("placewise.trust-store: cannot use " + settings.trustStore + ": " + error);
    }
  }

  JsonNode admitOrWait(JsonNode question, long budgetMs) throws ServiceException {
    return call("POST", "/jobs:admitOrWait", question, budgetMs);
  }

  JsonNode partition(JsonNode question, long budgetMs) throws ServiceException {
    return call("POST", "/tasks:partition", question, budgetMs);
  }

  JsonNode reportEvents(JsonNode events, long budgetMs) throws ServiceException {
    return call("POST", "/jobs:reportEvents", events, budgetMs);
  }

  JsonNode putNodes(JsonNode nodes, long budgetMs) throws ServiceException {
    return call("PUT", "/nodes", nodes, budgetMs);
  }

  /** The whole cluster; throws with status 404 if the service does not know it. */
  JsonNode cluster(long budgetMs) throws ServiceException {
    return call("GET", "?full=true", null, budgetMs);
  }

  private JsonNode call(String method, String path, JsonNode body, long budgetMs) throws ServiceException {
    Call call = new Call(method, path, body, budgetMs);
    Future<JsonNode> answer = callers.submit(call::run);
    try {
      return answer.get(budgetMs, TimeUnit.MILLISECONDS);
    } catch (TimeoutException error) {
      call.cut();
      answer.cancel(true);
      throw new ServiceException(0, "no answer within " + budgetMs + " ms");
    } catch (ExecutionException error) {
      if (error.getCause() instanceof ServiceException) {
        throw (ServiceException) error.getCause();
      }
      throw new ServiceException(0, String.valueOf(error.getCause()));
    } catch (InterruptedException error) {
      call.cut();
      Thread.currentThread().interrupt();
      throw new ServiceException(0, "stopped");
    }
  }

  @Override
  public void close() {
    callers.shutdownNow();
  }

  /** One request on its way. */
  private final class Call {
    private final String method;
    private final String path;
    private final JsonNode body;
    private final int budgetMs;
    private volatile HttpURLConnection connection;

    Call(String method, String path, JsonNode body, long budgetMs) {
      this.method = method;
      this.path = path;
      this.body = body;
      this.budgetMs = (int) Math.min(Integer.MAX_VALUE, budgetMs);
    }

    void cut() {
      HttpURLConnection open = connection;
      if (open != null) {
        open.disconnect();
      }
    }

    JsonNode run() throws IOException {
      connection = opened();
      if (body != null) {
        byte[] bytes = JSON.writeValueAsBytes(body);
        connection.setDoOutput(true);
        connection.setFixedLengthStreamingMode(bytes.length);
        connection.getOutputStream().write(bytes);
      }
      int status = connection.getResponseCode();
      byte[] answer = read(status < 400 ? connection.getInputStream() : connection.getErrorStream());
      if (status != 200) {
        throw new ServiceException(status, "status " + status + ": " + excerpt(answer));
      }
      JsonNode parsed = JSON.readTree(answer);
      if (parsed == null || !parsed.isObject()) {
        throw new ServiceException(0, "the answer is no JSON object");
      }
      return parsed;
    }

    private HttpURLConnection opened() throws IOException {
      HttpURLConnection opened = (HttpURLConnection) new URL(base + path).openConnection();
      if (sockets != null && opened instanceof HttpsURLConnection) {
        ((HttpsURLConnection) opened).setSSLSocketFactory(sockets);
      }
      opened.setRequestMethod(method);
      opened.setConnectTimeout(budgetMs);
      opened.setReadTimeout(budgetMs);
      opened.setInstanceFollowRedirects(false);
      opened.setRequestProperty("Content-Type", "application/json");
      opened.setRequestProperty("Placewise-Timeout-Ms", Integer.toString(budgetMs));
      String token = settings.token();
      if (!token.isEmpty()) {
        opened.setRequestProperty("Authorization", "Bearer " + token);
      }
      return opened;
    }

    private byte[] read(InputStream stream) throws IOException {
      ByteArrayOutputStream bytes = new ByteArrayOutputStream();
      if (stream == null) {
        return bytes.toByteArray();
      }
      // Read to its end and closed, the connection serves the next call.
      try (InputStream open = stream) {
        byte[] part = new byte[16_384];
        for (int read = open.read(part); read >= 0; read = open.read(part)) {
          bytes.write(part, 0, read);
          if (bytes.size() > LARGEST_ANSWER) {
            throw new ServiceException(0, "the answer is above " + LARGEST_ANSWER + " bytes");
          }
        }
      }
      return bytes.toByteArray();
    }

    private String excerpt(byte[] answer) {
      return new String(answer, 0, Math.min(answer.length, 300), java.nio.charset.StandardCharsets.UTF_8)
          .replaceAll("\\s+", " ");
    }
  }
}
