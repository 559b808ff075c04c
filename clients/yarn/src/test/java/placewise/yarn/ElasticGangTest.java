package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;
import org.junit.Before;
import org.junit.Test;

/** An application with the tag placewise.min-gpus=2 asks for eight containers of one GPU. */
public final class ElasticGangTest {
  private final ApplicationAttemptId attempt = Fakes.attempt(1);
  private final Settings settings = new Settings(Fakes.configuration("http://127.0.0.1:1"));
  private final PlacewiseMetrics metrics = PlacewiseMetrics.registered();
  private final Broker broker = new Broker(settings, new Reporter(metrics), metrics, () -> 1_000_000, () -> {});
  private Ask ask;

  @Before
  public void askForSingleGpus() {
    ask(1);
  }

  private void ask(long gpus) {
    ask = Fakes.ask(attempt, 8, false);
    ask.update(Resource.newInstance(64, 1, Collections.singletonMap(ResourceInformation.GPU_URI, gpus)), "", 8, 0);
  }

  private Gang submitted() {
    AppFacts app = new AppFacts(Fakes.app(Collections.singletonMap("placewise.min-gpus", "2")));
    broker.asksChanged(attempt, app, Collections.singleton(ask));
    return theGang();
  }

  private Gang theGang() {
    List<Gang> due = broker.due().values().iterator().next();
    assertEquals(1, due.size());
    return due.get(0);
  }

  private static JsonNode job(Gang gang) {
    return Questions.job(gang, "root.gpu");
  }

  private Answer.Placed on(int tasks) throws ServiceException {
    ObjectNode decision = ServiceClient.JSON.createObjectNode();
    ArrayNode assignments = decision.putArray("assignments");
    for (int i = 0; i < tasks; i++) {
      assignments.addObject().put("task", "worker-" + i).put("node", "n1");
    }
    Map<Ask, Integer> counts = new HashMap<>();
    counts.put(ask, 8);
    return Answer.placed(counts, 2, decision, "decision", Collections.singleton("n1"));
  }

  @Test
  public void theQuestionHasTheRange() {
    JsonNode job = job(submitted());
    assertEquals("{\"minGpus\":2,\"maxGpus\":8}", job.path("elastic").toString());
    assertEquals(1, job.path("groups").path(0).path("count").asInt());
  }

  @Test
  public void whatADecisionLeavesOutIsAnotherQuestion() throws ServiceException {
    Gang gang = submitted();
    broker.sending(Collections.singletonList(gang));
    assertTrue(broker.granted(gang, gang.id(), on(5)));
    assertEquals(5, gang.size());
    assertTrue(ask.hasGrants());
    Gang rest = theGang();
    assertEquals("{\"minGpus\":2,\"maxGpus\":3}", job(rest).path("elastic").toString());
    assertTrue(broker.granted(rest, rest.id(), on(2)));
    assertEquals(1, job(theGang()).path("groups").path(0).path("count").asInt());
    assertFalse(job(theGang()).has("elastic"));
    assertEquals(0, ask.need());
  }

  @Test
  public void aPlaceForTooFewContainersIsNoAnswer() throws ServiceException {
    assertEquals(2, on(2).size());
    assertThrows(ServiceException.class, () -> on(1));
    assertThrows(ServiceException.class, () -> on(9));
  }

  @Test
  public void whereYarnWouldNotAllocateAllOfItTheQuestionIsAboutItsFewest() {
    Gang gang = submitted();
    assertEquals(8, Questions.gpus(broker.nextClaim(gang, false).wanted));
    assertEquals(2, Questions.gpus(broker.nextClaim(gang, true).wanted));
    assertEquals(2, job(gang).path("groups").path(0).path("count").asInt());
    assertFalse(job(gang).has("elastic"));
  }

  @Test
  public void containersOfSeveralGpusStartTogether() {
    ask(2);
    assertFalse(job(submitted()).has("elastic"));
    assertEquals(8, job(theGang()).path("groups").path(0).path("count").asInt());
  }
}
