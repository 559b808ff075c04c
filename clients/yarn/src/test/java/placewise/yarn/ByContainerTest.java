package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.junit.Test;

/** Spark starts with a part of its executors, and MapReduce with a part of its tasks. */
public final class ByContainerTest {
  private static final long BACK_OFF_MS = 1_000;
  private final ApplicationAttemptId attempt = Fakes.attempt(1);
  private final Settings settings = new Settings(Fakes.configuration("http://127.0.0.1:1"));
  private final PlacewiseMetrics metrics = PlacewiseMetrics.registered();
  private final Reporter reporter = new Reporter(metrics);
  private final Ask ask = Fakes.ask(attempt, 3, false);
  private long now = 1_000_000;
  private final Broker broker = new Broker(settings, reporter, metrics, () -> now, () -> {});

  private List<Integer> sizes(String type, Map<String, String> properties) {
    AppFacts app = new AppFacts(Fakes.app(type, properties, 0));
    broker.asksChanged(attempt, app, Collections.singleton(ask));
    return due().stream().map(Gang::size).collect(Collectors.toList());
  }

  private List<Gang> due() {
    return broker.due().values().iterator().next();
  }

  @Test
  public void eachContainerOfSparkOrMapReduceIsDecidedByItself() {
    assertEquals(Arrays.asList(1, 1, 1), sizes("SPARK", Collections.emptyMap()));
    assertEquals(3, due().stream().map(Gang::id).distinct().count());
  }

  @Test
  public void theTypeIsReadInEitherCase() {
    assertEquals(Arrays.asList(1, 1, 1), sizes("mapreduce", Collections.emptyMap()));
  }

  @Test
  public void aDeclaredGangOfSparkIsDecidedTogether() {
    assertEquals(Collections.singletonList(3), sizes("SPARK", Collections.singletonMap("placewise.gang", "3")));
  }

  @Test
  public void aDivisibleTaskIsDecidedTogether() {
    assertEquals(Collections.singletonList(3), sizes("SPARK", Collections.singletonMap("placewise.divisible", "60")));
  }

  @Test
  public void otherApplicationsAreDecidedByTheCall() {
    assertEquals(Collections.singletonList(3), sizes("TEZ", Collections.emptyMap()));
  }

  @Test
  public void anExecutorThatIsNotWantedAnyMoreTakesItsOwnQuestionAlong() {
    sizes("SPARK", Collections.emptyMap());
    List<Gang> before = due();
    ask.update(ask.resource(), "", 2, 0);
    broker.asksChanged(attempt, before.get(0).app, Collections.singleton(ask));
    assertEquals(before.subList(0, 2), due());
  }

  @Test
  public void aContainerThatComesTooLateHoldsUpNoOther() {
    sizes("SPARK", Collections.emptyMap());
    Gang late = due().get(0);
    broker.sending(Collections.singletonList(late));
    Answer.Placed placed = new Answer.Placed("decision", "reservation");
    placed.byAsk.put(ask, Collections.singletonList("n1"));
    assertTrue(broker.granted(late, late.id(), placed));
    now += settings.startTimeoutMs + 1;
    broker.withdrawOverdue((blacklist, node) -> true);
    assertEquals(2, due().size());
    now += BACK_OFF_MS;
    assertEquals(3, due().size());
  }
}
