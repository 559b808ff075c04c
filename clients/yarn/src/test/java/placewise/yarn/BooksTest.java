package placewise.yarn;

import static org.junit.Assert.assertEquals;

import com.fasterxml.jackson.databind.node.ObjectNode;
import com.sun.net.httpserver.HttpServer;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerState;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;
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

  /** Its own containers are reported one by one, with the reason for which the gang was left to YARN. */
  @Test
  public void containersOfAGangThatWasLeftToYarnSayWhy() {
    Configuration configuration = Fakes.configuration("http://127.0.0.1:1");
    Ask made = Fakes.ask(Fakes.attempt(1), 2, false);
    RMContext context = Fakes.activeContext(configuration, running(made), event -> {}, "n1");
    Placewise placewise = Placewise.start(context, configuration);
    Books books = new Books(context, placewise);
    placewise.reporter.recheck(Collections.singleton(container(made, 2)));
    books.check();
    placewise.ask(made.attempt, made.key).open(1, "no decision: the service answered 500");
    placewise.reporter.recheck(Collections.singleton(container(made, 3)));
    books.check();
    assertEquals(Arrays.asList("", "left to the host: no decision: the service answered 500"),
        placewise.reporter.first(9).stream().map(event -> event.path("reason").asText()).collect(Collectors.toList()));
  }

  private static ContainerId container(Ask ask, int number) {
    return ContainerId.newContainerId(ask.attempt, number);
  }

  /** A scheduler in which every container of the ask runs on n1. */
  private static FifoScheduler running(Ask ask) {
    Map<String, Object> answers = new HashMap<>();
    answers.put("completed", false);
    answers.put("getState", RMContainerState.RUNNING);
    answers.put("getAllocatedNode", NodeId.newInstance("n1", 1));
    answers.put("getAllocatedResource", ask.resource());
    answers.put("getAllocatedSchedulerKey", ask.key);
    answers.put("getApplicationAttemptId", ask.attempt);
    return new FifoScheduler() {
      @Override
      public RMContainer getRMContainer(ContainerId id) {
        return Fakes.answering(RMContainer.class, answers);
      }

      @Override
      public FifoAppAttempt getApplicationAttempt(ApplicationAttemptId id) {
        return null;
      }
    };
  }

  private static String named(ObjectNode event) {
    return event.path("jobId").asText() + " " + event.path("kind").asText();
  }
}
