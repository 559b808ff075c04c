package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertSame;
import static org.junit.Assert.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.File;
import java.nio.file.Files;
import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.server.resourcemanager.RMContextImpl;
import org.apache.hadoop.yarn.server.resourcemanager.metrics.SystemMetricsPublisher;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Reports to the service: token, states of nodes, and YARN's publisher. */
public final class ReportsTest extends WholeAdapter {
  @Rule
  public final TemporaryFolder folder = new TemporaryFolder();

  @Test
  public void everyCallBearsTheToken() throws Exception {
    File file = folder.newFile("token");
    Files.write(file.toPath(), "secret\n".getBytes());
    configuration.set("placewise.token-file", file.toString());
    start("n1");
    submit(1, 2);
    until(() -> service.calls("jobs:admitOrWait") > 0);
    assertEquals(Collections.singleton("Bearer secret"), service.authorizations());
  }

  @Test
  public void aNodeThatTakesNoContainersIsNotReady() throws Exception {
    start(Fakes.activeContext(configuration, new FifoScheduler(), event -> {}, Fakes.node("n1"),
        Fakes.node("n2", NodeState.DECOMMISSIONING), Fakes.node("n3", NodeState.UNHEALTHY),
        Fakes.node("n4", NodeState.LOST)));
    Map<String, String> states = new TreeMap<>();
    for (JsonNode node : service.bodies("nodes").get(0).path("nodes")) {
      states.put(node.path("id").asText(), node.path("state").asText());
    }
    assertEquals("{n1=READY, n2=DRAINING, n3=DOWN, n4=DOWN}", states.toString());
  }

  @Test
  public void yarnsPublisherIsWrappedOnce() {
    RMContextImpl context = new RMContextImpl();
    assertTrue(!Outcomes.install(context));
    context.setSystemMetricsPublisher(Fakes.answering(SystemMetricsPublisher.class, Collections.emptyMap()));
    assertTrue(Outcomes.install(context));
    SystemMetricsPublisher wrapped = context.getSystemMetricsPublisher();
    assertTrue(wrapped instanceof Outcomes);
    assertTrue(Outcomes.install(context));
    assertSame(wrapped, context.getSystemMetricsPublisher());
  }
}
