package placewise.yarn;

import static org.junit.Assert.assertEquals;

import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.junit.Test;

/** The service's jobs against YARN's containers. */
public final class BooksTest {
  private static final String CLUSTER = "{\"jobs\": [{\"jobId\": \"container_strange\"},"
      + "{\"jobId\": \"appattempt_strange/w1.1.run\"}, {\"jobId\": \"elsewhere\"}]}";

  @Test
  public void jobsThatYarnCannotHaveAreEndedWhateverTheirName() throws Exception {
    HttpServer server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
    server.createContext("/", exchange -> {
      byte[] answer = CLUSTER.getBytes(StandardCharsets.UTF_8);
      exchange.sendResponseHeaders(200, answer.length);
      exchange.getResponseBody().write(answer);
      exchange.close();
    });
    server.start();
    Configuration configuration = Fakes.configuration("http://127.0.0.1:" + server.getAddress().getPort());
    RMContext context = Fakes.context(configuration, Collections.emptyMap(), () -> null);
    Placewise placewise = Placewise.start(context, configuration);
    try (ServiceClient service = new ServiceClient(placewise.settings)) {
      new Books(context, placewise).compare(service, 5_000);
    } finally {
      server.stop(0);
    }
    assertEquals(Arrays.asList("container_strange CANCELLED", "appattempt_strange/w1.1.run CANCELLED",
        "elsewhere CANCELLED"), placewise.reporter.first(9).stream().map(BooksTest::named).collect(Collectors.toList()));
  }

  private static String named(ObjectNode event) {
    return event.path("jobId").asText() + " " + event.path("kind").asText();
  }
}
