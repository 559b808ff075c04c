package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.net.URI;
import java.util.Arrays;
import org.junit.After;
import org.junit.Test;

/** Log lines and calls of an outage while a gang is held. */
public final class OutageTest extends WholeAdapter {
  private static final String GOES = "no answer from";
  private static final String COMES = "answers again";
  private final LogLines log = new LogLines();

  private void holdAGang() throws Exception {
    start("n1");
    submit(1, 2);
    until(() -> service.calls("jobs:admitOrWait") >= 2);
  }

  @After
  public void closeTheLog() {
    log.close();
  }

  private void assertLogged(int goes, int comes) {
    assertEquals(log.with(GOES).toString(), goes, log.with(GOES).size());
    assertEquals(log.with(COMES).toString(), comes, log.with(COMES).size());
  }

  @Test
  public void aServiceThatIsAwayAndBackIsTwoLines() throws Exception {
    holdAGang();
    service.close();
    long undecided = Placewise.current().metrics.undecided.value();
    until(() -> Placewise.current().metrics.undecided.value() >= undecided + 25); // asked again in vain many times
    assertLogged(1, 0);
    Placewise.current().reporter.add(Questions.event("a job", "STARTED", 1));
    service = new StubService(URI.create(service.url()).getPort());
    until(() -> service.calls("jobs:admitOrWait") >= 5);
    assertLogged(1, 1);
    // Queued events are sent before jobs are compared. Otherwise a job's end would arrive after its removal.
    assertEquals(Arrays.asList("nodes", "jobs:reportEvents", "yarn"), service.names().subList(0, 3));
  }

  /**
   * Each retry of the service takes two seconds. In each, only the first new gang waits for the decide budget.
   */
  @Test
  public void whileAServiceHangsNewGangsDoNotWaitForIt() throws Exception {
    configuration.set("placewise.decide-budget-ms", "300");
    holdAGang();
    service.hang();
    until(() -> !log.with(GOES).isEmpty());
    long before = service.calls("nodes");
    long slow = 0;
    for (int number = 2; service.calls("nodes") < before + 3; number++) {
      Ask ask = submit(number, 2);
      long asked = System.nanoTime();
      until(() -> ask.accepts("a node"));
      slow += System.nanoTime() - asked > 200_000_000 ? 1 : 0;
      Thread.sleep(50);
    }
    assertTrue(slow + " new gangs were slow", slow <= 3);
    assertTrue(!asks.get(0).accepts("a node")); // it was decided before
  }

  @Test
  public void aServiceThatAnswersEverythingButQuestionsIsAway() throws Exception {
    holdAGang();
    service.spoilAll("error");
    long asked = service.calls("jobs:admitOrWait");
    until(() -> service.calls("jobs:admitOrWait") >= asked + 5);
    assertLogged(1, 0);
    service.spoilAll("");
    until(() -> !log.with(COMES).isEmpty());
    assertLogged(1, 1);
  }
}
