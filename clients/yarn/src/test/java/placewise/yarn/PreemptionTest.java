package placewise.yarn;

import static org.junit.Assert.assertEquals;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.monitor.capacity.ProportionalCapacityPreemptionPolicy;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.junit.Test;

/** The queues in which a gang that waits could make YARN pre-empt. */
public final class PreemptionTest {
  private static CSQueue leaf(String path, boolean losesToOthers, boolean losesToItself) {
    Map<String, Object> answers = new HashMap<>();
    answers.put("getQueuePath", path);
    answers.put("getPreemptionDisabled", !losesToOthers);
    answers.put("getIntraQueuePreemptionDisabled", !losesToItself);
    return Fakes.answering(CSQueue.class, answers);
  }

  private static Map<String, String> refusals(CSQueue... leaves) {
    return Preemption.refusals(Arrays.asList(leaves));
  }

  @Test
  public void aQueueThatMayTakeFromAnotherIsRefused() {
    Map<String, String> refusals = refusals(leaf("root.a", true, false), leaf("root.b", true, false));
    assertEquals(new HashSet<>(Arrays.asList("root.a", "root.b")), refusals.keySet());
    assertEquals("YARN may pre-empt containers of root.b for a gang that waits", refusals.get("root.a"));
  }

  @Test
  public void aQueueThatNobodyLosesToMayHoldItsGangs() {
    assertEquals(Collections.singleton("root.b"),
        refusals(leaf("root.a", true, false), leaf("root.b", false, false)).keySet());
    assertEquals(Collections.emptyMap(), refusals(leaf("root.a", false, false), leaf("root.b", false, false)));
    assertEquals(Collections.singleton("root.a"), refusals(leaf("root.a", false, true)).keySet());
  }

  @Test
  public void theMonitorCountsOnlyWithAPolicyThatPreempts() {
    YarnConfiguration configuration = new YarnConfiguration();
    assertEquals(false, Preemption.isOn(configuration));
    configuration.setBoolean(YarnConfiguration.RM_SCHEDULER_ENABLE_MONITORS, true);
    configuration.set(YarnConfiguration.RM_SCHEDULER_MONITOR_POLICIES,
        ProportionalCapacityPreemptionPolicy.class.getName());
    assertEquals(true, Preemption.isOn(configuration));
    configuration.setBoolean("yarn.resourcemanager.monitor.capacity.preemption.observe_only", true);
    assertEquals(false, Preemption.isOn(configuration));
    configuration.unset("yarn.resourcemanager.monitor.capacity.preemption.observe_only");
    configuration.set(YarnConfiguration.RM_SCHEDULER_MONITOR_POLICIES, "");
    assertEquals(false, Preemption.isOn(configuration));
  }
}
