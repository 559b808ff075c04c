package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.function.BooleanSupplier;
import org.apache.hadoop.conf.Configuration;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** The whole adapter against a service that lets all wait: thirty gangs of thirty applications are held. */
public final class AskerTest {
  private static final int GANGS = 30;
  private static final long PATIENCE_MS = 60_000;
  private final List<Ask> asks = new ArrayList<>();
  private StubService service;
  private Configuration configuration;

  @Before
  public void startTheService() throws Exception {
    service = new StubService(0);
    configuration = Fakes.configuration(service.url());
    configuration.set("placewise.decide-budget-ms", "1000");
    configuration.set("placewise.retry-ms", "100");
    configuration.set("placewise.release-after-ms", "60000");
  }

  @After
  public void stopTheService() {
    Placewise.start(Fakes.context(configuration, Collections.emptyMap(), () -> null), configuration);
    service.close();
  }

  private void askForGangs() throws Exception {
    Placewise.start(Fakes.activeContext(configuration), configuration);
    until(() -> service.calls("nodes") > 0); // it has warmed up
    AppFacts app = new AppFacts(Fakes.app(Collections.emptyMap()));
    for (int number = 1; number <= GANGS; number++) {
      Ask ask = Fakes.ask(Fakes.attempt(number), 2, false);
      asks.add(ask);
      Placewise.current().broker.asksChanged(ask.attempt, app, Collections.singleton(ask));
    }
  }

  private static void until(BooleanSupplier isTrue) throws InterruptedException {
    long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
    while (!isTrue.getAsBoolean()) {
      assertTrue("waited too long", System.nanoTime() < deadline);
      Thread.sleep(10);
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
