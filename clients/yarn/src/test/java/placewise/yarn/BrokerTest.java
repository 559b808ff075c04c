package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttemptState;
import org.junit.Before;
import org.junit.Test;

/** A failing service and the gangs that it has decided before. */
public final class BrokerTest {
  private final ApplicationAttemptId attempt = Fakes.attempt(1);
  private final Ask ask = Fakes.ask(attempt, 2, false);
  private final Settings settings = new Settings(Fakes.configuration("http://127.0.0.1:1"));
  private final PlacewiseMetrics metrics = PlacewiseMetrics.registered();
  private final Reporter reporter = new Reporter(metrics);
  private long now = 1_000_000;
  private Broker broker;

  @Before
  public void askForTwoContainers() {
    broker = new Broker(settings, reporter, metrics, () -> now, () -> {});
    broker.asksChanged(attempt, new AppFacts(Fakes.app(Collections.emptyMap())), Collections.singleton(ask));
  }

  private Gang theGang() {
    List<Gang> due = broker.due().values().iterator().next();
    assertEquals(1, due.size());
    return due.get(0);
  }

  @Test
  public void jobsOfTwoResourceManagersThatStartTogetherHaveDifferentIds() {
    String first = theGang().id();
    broker = new Broker(settings, reporter, metrics, () -> now, () -> {});
    broker.asksChanged(attempt, new AppFacts(Fakes.app(Collections.emptyMap())),
        Collections.singleton(Fakes.ask(attempt, 2, false)));
    assertNotEquals(first, theGang().id());
  }

  @Test
  public void aQuestionNamesTheUserOfTheApplication() {
    assertEquals("ann", Questions.job(theGang(), "root.gpu").path("user").asText());
    assertEquals("ben", Questions.single("c", "ben", "root.gpu", Resource.newInstance(64, 1)).path("user").asText());
  }

  @Test
  public void aQuestionNamesTheQueueAndThePriorityOfTheApplication() {
    assertEquals("root.gpu", question(0).path("queue").asText());
    assertEquals(Arrays.asList("NORMAL", "PRIOR", "PRIOR", "URGENT", "URGENT"), Arrays.asList(
        priority(0), priority(1), priority(6), priority(7), priority(10)));
  }

  @Test
  public void aQuestionAsksForTheNodeLabelOfItsContainers() {
    Ask labelled = Fakes.ask(attempt, 2, false);
    labelled.update(Resource.newInstance(64, 1), "fast", 2, 0);
    assertEquals("fast", partition(labelled));
    assertEquals(Questions.labelOf(""), partition(Fakes.ask(attempt, 2, false)));
  }

  private String partition(Ask of) {
    Gang gang = new Gang(attempt, new AppFacts(Fakes.app(Collections.emptyMap())), 1, "run", now);
    gang.counts.put(of, 2);
    return Questions.job(gang, "root.gpu").path("groups").path(0).path("nodeSelector").path("yarn.partition").asText();
  }

  private String priority(int ofApplication) {
    return question(ofApplication).path("priority").asText();
  }

  private JsonNode question(int priority) {
    Configuration configuration = Fakes.configuration("http://127.0.0.1:1");
    configuration.set("placewise.urgent-from", "7");
    AppFacts app = new AppFacts(Fakes.app(Collections.emptyMap(), priority));
    Gang gang = new Gang(attempt, app, 1, "run", now);
    gang.counts.put(ask, 2);
    return Questions.admitOrWait(new Settings(configuration), "root.gpu", Collections.singletonList(gang), "1")
        .path("jobs").path(0);
  }

  private Gang granted() {
    Gang gang = theGang();
    broker.sending(Collections.singletonList(gang));
    Answer.Placed placed = new Answer.Placed("decision", "reservation");
    placed.byAsk.put(ask, Arrays.asList("n1", "n2"));
    assertTrue(broker.granted(gang, gang.id(), placed));
    return gang;
  }

  @Test
  public void aGangThatWasNeverDecidedGoesWithTheFirstFailure() {
    Gang gang = theGang();
    broker.failed(Collections.singleton(gang), "refused");
    assertEquals(Gang.Stage.RELEASED, gang.stage);
  }

  @Test
  public void releaseAfterMinusOneLetsNoGangGo() {
    Configuration configuration = Fakes.configuration("http://127.0.0.1:1");
    configuration.set("placewise.release-after-ms", "-1");
    broker = new Broker(new Settings(configuration), reporter, metrics, () -> now, () -> {});
    AppFacts app = new AppFacts(Fakes.app(Collections.emptyMap()));
    broker.asksChanged(attempt, app, Collections.singleton(Fakes.ask(attempt, 2, false)));
    Gang gang = theGang();
    for (int day = 0; day < 3; day++) {
      broker.failed(Collections.singleton(gang), "away");
      broker.releaseUnasked("away", true);
      assertEquals(Gang.Stage.WAITING, gang.stage);
      now += 86_400_000;
    }
  }

  @Test
  public void aDeclaredGangThatStaysIncompleteIsAskedAboutAsItStands() {
    broker = new Broker(settings, reporter, metrics, () -> now, () -> {});
    AppFacts app = new AppFacts(Fakes.app(Collections.singletonMap("placewise.gang", "4")));
    broker.asksChanged(attempt, app, Collections.singleton(Fakes.ask(attempt, 2, false)));
    now += settings.gangTimeoutMs - 1;
    assertTrue(broker.due().isEmpty());
    now += 1;
    assertEquals(2, theGang().size());
  }

  @Test
  public void aGangThatWasIncompleteForLongIsAskedBeforeItIsReleased() {
    broker = new Broker(settings, reporter, metrics, () -> now, () -> {});
    AppFacts app = new AppFacts(Fakes.app(Collections.singletonMap("placewise.gang", "4")));
    for (int number = 2; number <= 3; number++) {
      broker.asksChanged(Fakes.attempt(number), app, Collections.singleton(Fakes.ask(Fakes.attempt(number), 2, false)));
    }
    now += settings.gangTimeoutMs - 1;
    broker.asksChanged(Fakes.attempt(2), app, Collections.singleton(Fakes.ask(Fakes.attempt(2), 2, false))); // its rest
    assertEquals(4, theGang().size());
    now += 1;
    List<Gang> gangs = broker.due().values().iterator().next();
    assertEquals(2, gangs.size());
    broker.releaseUnasked("the service did not answer in time", false);
    gangs.forEach(gang -> assertEquals(Gang.Stage.WAITING, gang.stage));
    now += 2 * settings.decideBudgetMs + 1;
    broker.releaseUnasked("the service did not answer in time", false);
    gangs.forEach(gang -> assertEquals(Gang.Stage.RELEASED, gang.stage));
  }

  @Test
  public void aNewGangWaitsForAQuestionAboutManyAsLongAsThatMayTake() {
    broker = new Broker(settings, reporter, metrics, () -> now, () -> {});
    AppFacts app = new AppFacts(Fakes.app(Collections.emptyMap()));
    for (int number = 2; number < 2 + 256; number++) {
      broker.asksChanged(Fakes.attempt(number), app, Collections.singleton(Fakes.ask(Fakes.attempt(number), 2, false)));
    }
    List<Gang> gangs = broker.sending(broker.due().values().iterator().next());
    assertEquals(256, gangs.size());
    now += 16 * settings.decideBudgetMs;
    broker.releaseUnasked("the service did not answer in time", false);
    gangs.forEach(gang -> assertEquals(Gang.Stage.WAITING, gang.stage));
    now += settings.decideBudgetMs + 1;
    broker.releaseUnasked("the service did not answer in time", false);
    gangs.forEach(gang -> assertEquals(Gang.Stage.RELEASED, gang.stage));
  }

  @Test
  public void anApplicationLearnsWhyItsGangWaits() {
    Gang gang = theGang();
    broker.waits(gang, gang.id(), "INSUFFICIENT_GPU", "decision");
    assertEquals(Collections.singleton("INSUFFICIENT_GPU"), new HashSet<>(broker.reasons().values()));
    granted();
    for (int number = 1; number <= 2; number++) {
      ask.take("n" + number);
      broker.containerStarted(ContainerId.newContainerId(attempt, number), "n" + number, ask);
    }
    assertEquals(Collections.singleton(""), new HashSet<>(broker.reasons().values()));
  }

  @Test
  public void aGangThatRanEndsAsItsAttemptDid() {
    granted();
    List<ContainerId> containers = new ArrayList<>();
    for (int number = 1; number <= 2; number++) {
      ask.take("n" + number);
      containers.add(ContainerId.newContainerId(attempt, number));
      broker.containerStarted(containers.get(number - 1), "n" + number, ask);
    }
    broker.attemptEnded(attempt, Outcomes.end(RMAppAttemptState.FAILED), "the attempt is FAILED");
    containers.forEach(broker::containerEnded);
    List<String> kinds = new ArrayList<>();
    reporter.first(9).forEach(event -> kinds.add(event.path("kind").asText()));
    assertEquals(Arrays.asList("STARTED", "FAILED"), kinds);
  }

  @Test
  public void eachStateOfAnAttemptHasItsEnd() {
    for (RMAppAttemptState state : EnumSet.of(RMAppAttemptState.FINISHED, RMAppAttemptState.FINISHING)) {
      assertEquals(Reporter.End.FINISHED, Outcomes.end(state));
    }
    assertEquals(Reporter.End.CANCELLED, Outcomes.end(RMAppAttemptState.KILLED));
    assertEquals(Reporter.End.FAILED, Outcomes.end(RMAppAttemptState.FAILED));
  }

  @Test
  public void aWithdrawnGangStaysHeldThroughOneFailure() {
    granted();
    now += settings.startTimeoutMs + 1;
    broker.withdrawOverdue((blacklist, node) -> true);
    now += settings.retryMs + 1; // its back-off
    staysHeldForAWhile(theGang());
  }

  @Test
  public void aGangThatIsWithdrawnAgainAndAgainIsAskedAboutEverMoreSeldom() {
    for (long pauseMs : new long[] {1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000}) {
      granted();
      now += settings.startTimeoutMs + 1;
      broker.withdrawOverdue((blacklist, node) -> true);
      now += pauseMs - 1;
      assertTrue(broker.due().isEmpty());
      now += 1;
      assertEquals(2, theGang().size());
    }
  }

  @Test
  public void aQuestionSaysWhatTheTagsSay() {
    Map<String, String> properties = new HashMap<>();
    properties.put("placewise.model", "resnet-50");
    properties.put("placewise.epochs", "90");
    properties.put("placewise.batch", "256");
    properties.put("placewise.samples", "1281167");
    Gang gang = new Gang(attempt, new AppFacts(Fakes.app(properties)), 1, "run", now);
    gang.counts.put(ask, 2);
    JsonNode job = Questions.job(gang, "root.gpu");
    assertEquals("resnet-50", job.path("model").asText());
    assertEquals(90, job.path("totalEpochs").asDouble(), 0);
    assertEquals(256, job.path("batchSize").asInt());
    assertEquals("1281167", job.path("datasetSize").asText());
  }

  @Test
  public void aWithdrawnGangSaysWhy() {
    granted();
    now += settings.startTimeoutMs + 1;
    broker.withdrawOverdue((blacklist, node) -> true);
    ObjectNode event = reporter.first(1).get(0);
    assertEquals("CANCELLED", event.path("kind").asText());
    assertEquals("decision", event.path("decisionId").asText());
    assertTrue(event.path("reason").asText(), event.path("reason").asText().startsWith("withdrawn: "));
  }

  @Test
  public void aGangOfALostNodeStaysHeldThroughOneFailure() {
    granted();
    broker.withdrawOverdue((blacklist, node) -> !node.equals("n2"));
    staysHeldForAWhile(theGang());
  }

  @Test
  public void aGangThatTheServiceHasForgottenStaysHeldThroughOneFailure() {
    broker.lost(granted());
    staysHeldForAWhile(theGang());
  }

  @Test
  public void anotherBlacklistIsAnotherQuestionAtOnce() {
    Gang gang = theGang();
    broker.sending(Collections.singletonList(gang));
    broker.waits(gang, gang.id(), "INSUFFICIENT_GPU", "decision");
    assertTrue(broker.due().isEmpty());
    String before = gang.id();
    Set<String> refused = Collections.singleton("n1");
    broker.blacklistChanged(attempt, gang.app, refused);
    assertEquals(gang, theGang());
    assertNotEquals(before, gang.id());
    assertEquals(Blacklists.OTHER, Questions.job(gang, "root.gpu").path("groups").path(0).path("nodeSelector")
        .path(Blacklists.label(refused)).asText());
    staysHeldForAWhile(gang);
  }

  @Test
  public void aGrantOnANodeThatIsRefusedNowIsAskedForAnew() {
    Gang before = granted();
    broker.blacklistChanged(attempt, before.app, Collections.singleton("n2"));
    broker.withdrawOverdue((blacklist, node) -> !blacklist.contains(node));
    assertEquals(Gang.Stage.ENDED, before.stage);
    assertTrue(!ask.hasGrants());
    assertEquals(Collections.singleton("n2"), theGang().blacklist);
  }

  @Test
  public void aGangThatMustNotBeHeldBackIsLeftToYarn() {
    Gang gang = theGang();
    broker.releaseRefused(one -> "YARN may pre-empt");
    assertEquals(Gang.Stage.RELEASED, gang.stage);
    assertTrue(ask.accepts("n1"));
  }

  @Test
  public void aDryRunRefusesNoNodeAndCountsWhatYarnPlacesBeforeTheAnswer() {
    Ask dry = Fakes.ask(attempt, 3, true);
    dry.addAsked(3);
    assertTrue(dry.accepts("n1"));
    dry.take("n1");
    assertEquals(0, dry.need());
    dry.addAsked(-3);
    dry.open(3, "");
    dry.take("n2");
    dry.take("n3");
    assertEquals(0, dry.need());
  }

  @Test
  public void aDryRunLogsEachGangOnce() {
    Configuration configuration = Fakes.configuration("http://127.0.0.1:1");
    configuration.set("placewise.dry-run", "true");
    broker = new Broker(new Settings(configuration), reporter, metrics, () -> now, () -> {});
    AppFacts app = new AppFacts(Fakes.app(Collections.emptyMap()));
    for (int number = 1; number <= 4; number++) {
      broker.asksChanged(Fakes.attempt(number), app, Collections.singleton(Fakes.ask(Fakes.attempt(number), 2, true)));
    }
    List<Gang> gangs = broker.due().values().iterator().next();
    try (LogLines log = new LogLines()) {
      broker.granted(gangs.get(0), gangs.get(0).id(), new Answer.Placed("decision", "reservation"));
      broker.waits(gangs.get(1), gangs.get(1).id(), "INSUFFICIENT_GPU", "decision");
      broker.impossible(gangs.get(2), gangs.get(2).id(), "INSUFFICIENT_GPU", true);
      broker.failed(gangs, "refused");
      for (Gang gang : gangs) {
        assertEquals(Gang.Stage.RELEASED, gang.stage);
        assertEquals(log.with(gang.id()).toString(), 1, log.with(gang.id()).size());
      }
    }
  }

  @Test
  public void aDecisionHasOneLine() {
    Gang gang = theGang();
    Answer.Placed placed = new Answer.Placed("fourth", "reservation");
    placed.byAsk.put(ask, Arrays.asList("n1", "n2"));
    try (LogLines log = new LogLines()) {
      broker.waits(gang, gang.id(), "INSUFFICIENT_GPU", "first");
      broker.waits(gang, gang.id(), "INSUFFICIENT_GPU", "second"); // for the same reason: nothing is new
      broker.waits(gang, gang.id(), "HEAD_RESERVATION", "third");
      broker.granted(gang, gang.id(), placed);
      List<String> decisions = Arrays.asList("first", "second", "third", "fourth");
      List<Integer> lines = decisions.stream().map(name -> log.with("decision " + name).size())
          .collect(Collectors.toList());
      assertEquals(Arrays.asList(1, 0, 1, 1), lines);
      assertEquals(3, log.with(gang.id()).size());
    }
  }

  @Test
  public void theStartOfAGangThatIsTakenOverIsReportedOnce() {
    Reporter reporter = new Reporter(metrics);
    broker = new Broker(settings, reporter, metrics, () -> now, () -> {});
    AppFacts app = new AppFacts(Fakes.app(Collections.emptyMap()));
    Set<ContainerId> live = Collections.singleton(ContainerId.newContainerId(attempt, 1));
    assertTrue(broker.takeOver(attempt, app, "w1.1.run", live, true));
    assertTrue(reporter.isEmpty());
    assertTrue(broker.takeOver(attempt, app, "w2.1.run", live, false));
    assertTrue(!reporter.isEmpty());
  }

  private void staysHeldForAWhile(Gang gang) {
    broker.failed(Collections.singleton(gang), "refused");
    assertEquals(Gang.Stage.WAITING, gang.stage);
    now += settings.releaseAfterMs;
    broker.failed(Collections.singleton(gang), "refused");
    assertEquals(Gang.Stage.RELEASED, gang.stage);
  }
}
