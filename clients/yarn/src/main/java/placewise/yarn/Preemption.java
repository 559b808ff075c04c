package placewise.yarn;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.monitor.capacity.ProportionalCapacityPreemptionPolicy;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacitySchedulerConfiguration;

/**
 * Queues whose gangs must not be held back. A held ask stays pending in YARN, and YARN's monitor pre-empts containers
 * of others for every pending ask, even one that is to wait.
 */
final class Preemption {
  private static final int MOST_NAMED = 3;

  private Preemption() {}

  /** By path of the queue, the reason. Queues whose gangs may wait are absent. */
  static Map<String, String> refusals(ResourceScheduler scheduler) {
    if (!(scheduler instanceof CapacityScheduler) || !isOn(((CapacityScheduler) scheduler).getConfiguration())) {
      return Collections.emptyMap();
    }
    return refusals(Queues.leaves((CapacityScheduler) scheduler));
  }

  /** Whether the monitor pre-empts containers, and does not only observe. */
  static boolean isOn(Configuration configuration) {
    boolean isMonitoring = configuration.getBoolean(
        YarnConfiguration.RM_SCHEDULER_ENABLE_MONITORS, YarnConfiguration.DEFAULT_RM_SCHEDULER_ENABLE_MONITORS);
    return isMonitoring && !configuration.getBoolean(CapacitySchedulerConfiguration.PREEMPTION_OBSERVE_ONLY, false)
        && Arrays.stream(configuration.getClasses(YarnConfiguration.RM_SCHEDULER_MONITOR_POLICIES))
            .anyMatch(ProportionalCapacityPreemptionPolicy.class::isAssignableFrom);
  }

  static Map<String, String> refusals(Collection<? extends CSQueue> leaves) {
    List<String> losers = new ArrayList<>();
    for (CSQueue leaf : leaves) {
      if (!leaf.getPreemptionDisabled()) {
        losers.add(leaf.getQueuePath());
      }
    }
    Map<String, String> refusals = new HashMap<>();
    for (CSQueue leaf : leaves) {
      List<String> taken = new ArrayList<>(losers);
      taken.remove(leaf.getQueuePath());
      if (!leaf.getIntraQueuePreemptionDisabled()) {
        taken.add(0, leaf.getQueuePath());
      }
      if (!taken.isEmpty()) {
        refusals.put(leaf.getQueuePath(), "YARN may pre-empt containers of " + named(taken) + " for a gang that waits");
      }
    }
    return refusals;
  }

  private static String named(List<String> queues) {
    String names = String.join(", ", queues.subList(0, Math.min(MOST_NAMED, queues.size())));
    return queues.size() <= MOST_NAMED ? names : names + " and " + (queues.size() - MOST_NAMED) + " others";
  }
}
