package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.junit.Test;

/** The way of a divisible task's shares to the containers of its gang. */
public final class ShareTest {
  private final ApplicationAttemptId attempt = Fakes.attempt(1);
  private final Ask ask = Fakes.ask(attempt, 2, false);

  private static JsonNode json(String text) throws Exception {
    return ServiceClient.JSON.readTree(text.replace('\'', '"'));
  }

  private static List<Answer.Task> tasks() throws Exception {
    return Arrays.asList(new Answer.Task("n1", json("[0, 1]")), new Answer.Task("n1", json("[2]")),
        new Answer.Task("n2", json("[0]")));
  }

  @Test
  public void aContainerHasTheSharesOfItsGpus() throws Exception {
    JsonNode answer = json("{'shares': [{'node': 'n1', 'unit': 'gpu0', 'scale': 30, 'predictedSeconds': 3},"
        + "{'node': 'n1', 'unit': 'gpu1', 'scale': 10, 'predictedSeconds': 4},"
        + "{'node': 'n2', 'unit': 'gpu0', 'scale': 60, 'predictedSeconds': 5}]}");
    List<Share> shares = Share.read(answer, tasks());
    assertEquals(tags("40.0", "0.4", "4.0", "gpu0,gpu1"), shares.get(0).tags());
    assertEquals(tags("0.0", "0.0", "0.0", ""), shares.get(1).tags());
    assertEquals(tags("60.0", "0.6", "5.0", "gpu0"), shares.get(2).tags());
    assertEquals(Collections.emptyList(), Share.read(json("{'outcome': 'WAIT'}"), tasks()));
  }

  private static HashSet<String> tags(String scale, String fraction, String seconds, String unit) {
    return new HashSet<>(Arrays.asList("PLACEWISE_SHARE_SCALE=" + scale, "PLACEWISE_SHARE_FRACTION=" + fraction,
        "PLACEWISE_SHARE_SECONDS=" + seconds, "PLACEWISE_SHARE_UNIT=" + unit));
  }

  @Test
  public void eachContainerKeepsAShareOfItsNode() throws Exception {
    Gang gang = new Gang(attempt, new AppFacts(Fakes.app(Collections.emptyMap())), 1, "run", 0);
    Answer.Placed placed = new Answer.Placed("decision", "reservation");
    placed.byAsk.put(ask, Arrays.asList("n1", "n2"));
    List<Answer.Task> tasks = Arrays.asList(new Answer.Task("n1", json("[0]")), new Answer.Task("n2", json("[0]")));
    placed.shares = Share.read(json("{'shares': [{'node': 'n1', 'unit': 'gpu0', 'scale': 1},"
        + "{'node': 'n2', 'unit': 'gpu0', 'scale': 3}]}"), tasks);
    gang.grant(placed, 0);
    Share first = gang.share(ContainerId.newContainerId(attempt, 2), ask, "n2");
    assertEquals(placed.shares.get(1), first);
    assertEquals(first, gang.share(ContainerId.newContainerId(attempt, 2), ask, "n2"));
    assertNull(gang.share(ContainerId.newContainerId(attempt, 3), ask, "n2"));
    assertEquals(placed.shares.get(0), gang.share(ContainerId.newContainerId(attempt, 3), ask, "n1"));
  }

  @Test
  public void aQuestionNamesTheGpusOfTheGang() throws Exception {
    Answer.Placed placed = new Answer.Placed("decision", "reservation");
    placed.tasks = tasks();
    Tags tags = new Tags(Arrays.asList("placewise.divisible=100", "placewise.serial=5", "placewise.kind=render"), null);
    JsonNode expected = json("{'task': {'id': 'job', 'kind': 'render', 'parallelScale': 100.0, 'serialScale': 5.0},"
        + "'units': ['n1/gpu0', 'n1/gpu1', 'n1/gpu2', 'n2/gpu0']}");
    assertEquals(expected, Share.question(tags, "job", placed));
  }
}
