package placewise.yarn;

import static org.junit.Assert.assertEquals;

import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.util.resource.DominantResourceCalculator;
import org.junit.Test;

/** A user's limit in a queue of 50 cores in a cluster of 100. Memory follows the cores. */
public final class LimitsTest {
  private static Resource cores(int count) {
    return Resource.newInstance(count * 1024L, count);
  }

  private static void check(int expected, int now, int used, int wanted, float factor) {
    assertEquals(cores(expected), Limits.userLimit(cores(now), cores(used), cores(wanted), cores(50), factor,
        new DominantResourceCalculator(), cores(100)));
  }

  @Test
  public void aUserAloneMayPassTheCapacityOfTheQueue() {
    check(73, 50, 0, 73, 4);
    check(90, 70, 70, 20, -1);
  }

  @Test
  public void theLimitStaysWhileTheQueueIsBelowItsCapacity() {
    check(25, 25, 10, 40, 1);
  }

  @Test
  public void usersShareWhatTheQueueGrowsBy() {
    check(40, 25, 30, 50, 4);
  }

  @Test
  public void noGangPassesTheFactor() {
    check(50, 50, 0, 73, 1);
    check(75, 50, 0, 90, 1.5f);
  }
}
