package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

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
