package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;
import org.junit.Test;

/** The whole adapter takes decisions back that YARN does not carry out, or cannot any more. */
public final class WithdrawnTest extends WholeAdapter {
  private Optional<JsonNode> withdrawn() {
    return service.bodies("jobs:reportEvents").stream().flatMap(body -> body.findValues("events").stream())
        .flatMap(events -> events.findParents("kind").stream())
        .filter(event -> event.path("kind").asText().equals("CANCELLED")).findFirst();
  }

  private Set<String> asked() {
    Set<String> ids = new TreeSet<>();
    List<JsonNode> questions = service.bodies("jobs:admitOrWait");
    questions.forEach(question -> question.path("jobs").forEach(job -> ids.add(job.path("id").asText())));
    ids.removeIf(id -> !id.startsWith(Fakes.attempt(1) + "/")); // the warm-up's
    return ids;
  }

  @Test
  public void aPlaceThatYarnDoesNotTakeInTimeIsTakenBackAndAskedForAgain() throws Exception {
    configuration.set("placewise.start-timeout-ms", "300");
    service.placeOn("n1");
    start("n1");
    Ask ask = submit(1, 2);
    until(() -> ask.accepts("n1"));
    String first = asked().iterator().next();
    until(() -> withdrawn().isPresent());
    JsonNode event = withdrawn().get();
    assertEquals(first, event.path("jobId").asText());
    assertTrue(event.toString(), event.path("reason").asText().startsWith("withdrawn: "));
    until(() -> asked().size() > 1);
    until(() -> ask.accepts("n1"));
  }

  @Test
  public void aPlaceOnANodeThatIsLostIsAskedForAgainElsewhere() throws Exception {
    AtomicReference<NodeState> state = new AtomicReference<>(NodeState.RUNNING);
    RMNode[] nodes = {Fakes.node("n1"), Fakes.node("n2", state::get)};
    service.placeOn("n2");
    start(Fakes.activeContext(configuration, new FifoScheduler(), event -> {}, nodes));
    Ask ask = submit(1, 2);
    until(() -> ask.accepts("n2"));
    String first = asked().iterator().next();
    service.placeOn("n1");
    state.set(NodeState.LOST);
    until(() -> ask.accepts("n1"));
    assertFalse(ask.accepts("n2"));
    until(() -> withdrawn().isPresent());
    assertEquals(first, withdrawn().get().path("jobId").asText());
    assertEquals(2, asked().size());
  }
}
