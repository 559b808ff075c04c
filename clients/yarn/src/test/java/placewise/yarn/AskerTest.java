package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.junit.Test;

/** The whole adapter against a service that lets all wait: thirty gangs of thirty applications are held. */
public final class AskerTest extends WholeAdapter {
  private static final int GANGS = 30;

  private void askForGangs() throws Exception {
    start();
    for (int number = 1; number <= GANGS; number++) {
      submit(number, 2);
    }
  }

  private void untilAskedAgain(int times) throws InterruptedException {
    long wanted = service.calls("jobs:admitOrWait") + times;
    until(() -> service.calls("jobs:admitOrWait") >= wanted);
  }

  private long heldBack() {
    return asks.stream().filter(ask -> !ask.accepts("n1")).count();
  }

  @Test
  public void oneErrorAndOneSlowAnswerReleaseNoneOfThirtyHeldGangs() throws Exception {
    configuration.set("placewise.decide-budget-ms", "1000");
    askForGangs();
    untilAskedAgain(3);
    for (String fault : new String[] {"error", "slow"}) {
      long undecided = Placewise.current().metrics.undecided.value();
      service.spoilNext(fault);
      until(service::isSpoilt);
      untilAskedAgain(3);
      assertTrue(fault + " was noticed", Placewise.current().metrics.undecided.value() > undecided);
      assertEquals(fault, GANGS, heldBack());
    }
  }

  /** As after a restart of the ResourceManager, which waits for its nodes to tell of their containers. */
  @Test
  public void aGangThatComesBeforeYarnAllocatesIsAskedAboutAndNotReleased() throws Exception {
    configuration.set("placewise.decide-budget-ms", "100");
    service.placeOn("n1");
    AtomicBoolean isReady = new AtomicBoolean();
    RMContext active = Fakes.activeContext(configuration, "n1");
    RMContext recovering = (RMContext) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {RMContext.class},
        (proxy, method, arguments) -> method.getName().equals("isSchedulerReadyForAllocatingContainers")
            ? isReady.get() : method.invoke(active, arguments));
    Placewise.start(recovering, configuration);
    Ask ask = submit(1, 2);
    Thread.sleep(500); // longer than any gang waits for its first question
    isReady.set(true);
    until(() -> ask.accepts("n1"));
    assertEquals(0, Placewise.current().metrics.released.value());
  }

  private Set<String> gangsOf(JsonNode question) {
    Set<String> ids = new TreeSet<>();
    question.path("jobs").forEach(job -> ids.add(job.path("id").asText()));
    return ids;
  }

  @Test
  public void gangsOfAQueueThatWaitGoInOneCall() throws Exception {
    askForGangs();
    untilAskedAgain(3);
    List<JsonNode> questions = service.bodies("jobs:admitOrWait");
    assertEquals(GANGS, gangsOf(questions.get(questions.size() - 1)).size());
  }

  @Test
  public void aSmallGangBehindSixteenThatWaitStarts() throws Exception {
    configuration.set("placewise.decide-budget-ms", "1000");
    start("n1");
    service.startOnly(Fakes.attempt(GANGS) + "/", "n1");
    for (int number = 1; number <= GANGS; number++) {
      submit(number, 2);
    }
    until(() -> asks.get(GANGS - 1).accepts("n1"));
    assertEquals(GANGS - 1, heldBack());
  }

  @Test
  public void aQuestionAboutManyGangsMayTakeABudgetForEachBatch() throws Exception {
    configuration.set("placewise.decide-budget-ms", "2000"); // two batches: 4 s, and a slow answer comes after 3
    askForGangs();
    untilAskedAgain(3);
    long undecided = Placewise.current().metrics.undecided.value();
    service.spoilNext("slow");
    until(service::isSpoilt);
    untilAskedAgain(2);
    assertEquals(undecided, Placewise.current().metrics.undecided.value());
  }

  @Test
  public void aFailingServiceIsLookedAtWithOneBatch() throws Exception {
    askForGangs();
    untilAskedAgain(3);
    service.spoilAll("error");
    untilAskedAgain(4);
    service.spoilAll("");
    List<JsonNode> questions = service.bodies("jobs:admitOrWait");
    assertEquals(16, gangsOf(questions.get(questions.size() - 2)).size());
    untilAskedAgain(3);
    assertEquals(GANGS, heldBack());
  }

  @Test
  public void aGangThatTheServiceCannotReadIsFoundByHalves() throws Exception {
    askForGangs();
    untilAskedAgain(3);
    List<JsonNode> questions = service.bodies("jobs:admitOrWait");
    service.refuse(new ArrayList<>(gangsOf(questions.get(questions.size() - 1))).get(17));
    until(() -> heldBack() == GANGS - 1);
    List<JsonNode> later = service.bodies("jobs:admitOrWait");
    later = later.subList(questions.size(), later.size());
    assertTrue("one question for each gang", later.stream().filter(each -> gangsOf(each).size() == 1).count() < 5);
  }

  @Test
  public void gangsThatNoQuestionReachesAreHeldBehindTheOthers() throws Exception {
    configuration.set("placewise.batch", "4");
    configuration.set("placewise.depth", "8");
    configuration.set("placewise.decide-budget-ms", "300");
    askForGangs();
    untilAskedAgain(12); // twelve times retry-ms: longer than any gang waits to be asked about
    assertEquals(GANGS, heldBack());
  }
}
