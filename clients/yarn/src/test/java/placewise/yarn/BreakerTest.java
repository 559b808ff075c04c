package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import org.junit.Test;

/** How often an unavailable service is asked, and how often its failures are logged. */
public final class BreakerTest {
  private long now = 1_000_000;
  private final Breaker breaker = new Breaker(() -> now);

  @Test
  public void theFirstFailureIsLoggedAndThenOneEachMinuteWithTheirNumber() {
    assertEquals(1, breaker.fail("refused"));
    for (int second = 1; second < 60; second++) {
      now += 1_000;
      assertEquals(0, breaker.fail("refused"));
    }
    now += 1_000;
    assertEquals(61, breaker.fail("refused"));
    now += 1_000;
    assertEquals(0, breaker.fail("refused"));
    assertTrue(breaker.succeed());
    assertFalse(breaker.succeed());
    assertEquals(1, breaker.fail("refused"));
  }

  @Test
  public void thePauseGrowsToASecond() {
    for (long pause : new long[] {100, 200, 400, 800, 1_000, 1_000}) {
      breaker.fail("refused");
      now += pause - 1;
      assertTrue(breaker.isOpen());
      now += 1;
      assertFalse(breaker.isOpen());
    }
  }
}
