package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.Resource;
import org.junit.Test;

/** Cases of the adapters' conformance suite: the whole adapter against a scripted service. */
public final class ConformanceTest extends WholeAdapter {
  private static final String QUESTION = "jobs:admitOrWait";
  private static final String EVENTS = "jobs:reportEvents";

  private void start() throws Exception {
    start("n1", "n2", "n3", "n4");
  }

  private static void cancel(Ask ask) {
    Placewise.current().broker.attemptEnded(ask.attempt, Reporter.End.CANCELLED, "killed");
  }

  /** The jobs of every question, oldest first. */
  private List<List<String>> questions() {
    return service.bodies(QUESTION).stream()
        .map(body -> body.path("jobs").findValuesAsText("id")).collect(Collectors.toList());
  }

  private String lastNameOf(Ask ask) {
    List<String> names = questions().stream().flatMap(List::stream)
        .filter(name -> name.startsWith(ask.attempt.toString())).collect(Collectors.toList());
    return names.get(names.size() - 1);
  }

  private void untilAskedAbout(Ask ask, int times) throws InterruptedException {
    until(() -> questions().stream().flatMap(List::stream)
        .filter(name -> name.startsWith(ask.attempt.toString())).count() >= times);
  }

  /** "job kind" of every event that the service was sent. */
  private List<String> events() {
    return service.bodies(EVENTS).stream().flatMap(body -> {
      List<String> named = new ArrayList<>();
      body.path("events").forEach(one -> named.add(one.path("jobId").asText() + " " + one.path("kind").asText()));
      return named.stream();
    }).collect(Collectors.toList());
  }

  private static boolean isLeftToYarn(Ask ask) {
    return ask.accepts("a node that no decision names");
  }

  @Test
  public void admissionAndPlaceAreOneQuestion() throws Exception {
    start();
    untilAskedAbout(submit(1, 2), 1);
    JsonNode question = service.bodies(QUESTION).get(0);
    assertEquals("fifo", question.path("policy").asText());
    assertTrue(question.path("place").isObject());
    assertEquals(0, service.calls("jobs:place"));
  }

  @Test
  public void whatCanNeverFitIsLeftToYarn() throws Exception {
    service.placeOn("NO_FIT");
    start();
    Ask ask = submit(1, 2);
    until(() -> isLeftToYarn(ask));
  }

  @Test
  public void whatHasNoShapeInTheClusterWaits() throws Exception {
    service.placeOn("NO_SHAPE");
    start();
    Ask ask = submit(1, 2);
    untilAskedAbout(ask, 3);
    assertFalse(isLeftToYarn(ask));
    assertEquals("no shape fits", ask.reason());
  }

  @Test
  public void whatHasNoShapeInTheClusterIsLeftToYarnOnRequest() throws Exception {
    configuration.set("placewise.release-unshapeable", "true");
    configuration.set("placewise.release-no-fit", "false");
    service.placeOn("NO_SHAPE");
    start();
    Ask ask = submit(1, 2);
    until(() -> isLeftToYarn(ask));
    assertEquals("left to YARN: impossible here: no shape fits", ask.reason());
  }

  @Test
  public void aLostAnswerForAGangThatIsHeldIsAskedForAgainByTheSameName() throws Exception {
    start();
    Ask ask = submit(1, 2);
    untilAskedAbout(ask, 2);
    String name = lastNameOf(ask);
    service.placeOn("n2");
    service.spoilNext("lost");
    until(ask::hasGrants);
    assertEquals(name, lastNameOf(ask)); // for one name the service repeats its answer
    assertTrue(ask.accepts("n2"));
    assertFalse(isLeftToYarn(ask));
    assertEquals(Collections.emptyList(), events());
  }

  @Test
  public void aLostAnswerForANewGangLeavesItToYarnAndFreesWhatTheServiceHolds() throws Exception {
    service.placeOn("n2");
    service.spoilNext("lost");
    start();
    Ask ask = submit(1, 2);
    until(() -> isLeftToYarn(ask));
    until(() -> events().contains(lastNameOf(ask) + " CANCELLED"));
  }

  @Test
  public void aLostAnswerForAGangLessIsAskedForWithoutIt() throws Exception {
    start();
    Ask gone = submit(1, 2);
    Ask stays = submit(2, 2);
    untilAskedAbout(gone, 2);
    untilAskedAbout(stays, 2);
    String nameOfGone = lastNameOf(gone);
    service.spoilNext("lost");
    until(service::isSpoilt);
    cancel(gone);
    service.placeOn("n2");
    until(stays::hasGrants);
    assertEquals(Collections.singletonList(lastNameOf(stays)), questions().get(questions().size() - 1));
    until(() -> events().contains(nameOfGone + " CANCELLED"));
    assertFalse(gone.hasGrants());
  }

  @Test
  public void aGangThatWasReleasedIsNotAskedAboutAgain() throws Exception {
    service.spoilNext("error");
    start();
    Ask gone = submit(1, 2);
    until(() -> isLeftToYarn(gone));
    until(() -> !events().isEmpty()); // the service is asked again
    service.placeOn("n2");
    int before = questions().size();
    Ask other = submit(2, 2);
    until(other::hasGrants);
    for (List<String> question : questions().subList(before, questions().size())) {
      assertEquals(Collections.singletonList(lastNameOf(other)), question);
    }
  }

  @Test
  public void aGangThatTheServiceCannotReadHoldsUpNoOther() throws Exception {
    configuration.set("placewise.retry-ms", "60000");
    start();
    for (int number = 1; number <= 5; number++) {
      submit(number, 2);
    }
    for (Ask ask : asks) {
      untilAskedAbout(ask, 1);
    }
    Ask strange = asks.get(2);
    service.refuse(lastNameOf(strange));
    service.placeOn("n2");
    Placewise.current().broker.changed(); // all are asked about again
    until(() -> isLeftToYarn(strange));
    until(() -> asks.stream().filter(ask -> ask != strange).allMatch(Ask::hasGrants));
  }

  @Test
  public void anEventThatTheServiceCannotReadLosesNoOther() throws Exception {
    start();
    service.refuse("two");
    List<String> jobs = Arrays.asList("zero", "one", "two", "three", "four");
    for (String job : jobs) {
      Placewise.current().reporter.add(Questions.event(job, "FINISHED", 1));
    }
    Placewise.current().wake();
    until(Placewise.current().reporter::isEmpty);
    for (String job : jobs) {
      long alone = service.bodies(EVENTS).stream().map(body -> body.path("events").findValuesAsText("jobId"))
          .filter(of -> of.contains(job) && !of.contains("two")).count();
      assertEquals(job, job.equals("two") ? 0 : 1, alone);
    }
  }

  @Test
  public void aNodeThatTheServiceCannotReadIsLeftOutAlone() throws Exception {
    configuration.set("placewise.node-refresh-ms", "1000");
    service.refuse("n4");
    start();
    until(() -> nodesOf(last("nodes")).equals(Arrays.asList("n1", "n2", "n3")) && last("nodes").path("full").asBoolean());
    long before = service.calls("nodes");
    until(() -> service.calls("nodes") > before + 1); // refreshed: one call each
    List<JsonNode> later = service.bodies("nodes").subList((int) before, (int) before + 2);
    assertTrue(later.stream().allMatch(body -> nodesOf(body).equals(Arrays.asList("n1", "n2", "n3"))));
    service.placeOn("n3");
    Ask ask = submit(1, 2);
    until(ask::hasGrants);
  }

  private JsonNode last(String name) {
    List<JsonNode> bodies = service.bodies(name);
    return bodies.get(bodies.size() - 1);
  }

  private static List<String> nodesOf(JsonNode report) {
    return new ArrayList<>(new TreeSet<>(report.path("nodes").findValuesAsText("id")));
  }

  @Test
  public void aGangThatIsCancelledWhileTheServiceDecidesIsNotStarted() throws Exception {
    configuration.set("placewise.decide-budget-ms", "30000");
    service.placeOn("n2");
    service.spoilNext("slow");
    start();
    Ask ask = submit(1, 2);
    untilAskedAbout(ask, 1);
    String name = lastNameOf(ask);
    cancel(ask);
    until(() -> Collections.frequency(events(), name + " CANCELLED") == 2); // at once, and after the late answer
    assertFalse(ask.hasGrants());
  }

  @Test
  public void aGangThatShrinksWhileItWaitsIsDecidedAsItIsThen() throws Exception {
    start();
    Ask ask = submit(1, 4);
    untilAskedAbout(ask, 2);
    String before = lastNameOf(ask);
    ask.update(Resource.newInstance(64, 1), "", 2, 0);
    changed(ask);
    service.placeOn("n3");
    until(ask::hasGrants);
    assertNotEquals(before, lastNameOf(ask));
    assertEquals(2, last(QUESTION).path("jobs").path(0).path("groups").path(0).path("count").asInt());
    until(() -> events().contains(before + " CANCELLED"));
  }
}
