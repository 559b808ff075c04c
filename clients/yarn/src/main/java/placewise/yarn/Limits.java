package placewise.yarn;

import java.util.Map;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.AbstractLeafQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.UsersManager;
import org.apache.hadoop.yarn.util.resource.ResourceCalculator;
import org.apache.hadoop.yarn.util.resource.Resources;

/** Whether YARN would allocate a gang now: what it would hold back must not be reserved. */
final class Limits {
  private static final double ROUNDING = 1e-6; // the quotient is a float, and the product loses its fraction

  private Limits() {}

  /** The limit that the gang would pass, or "". */
  static String passed(Gang gang, ResourceScheduler scheduler) {
    if (!(scheduler instanceof CapacityScheduler)) {
      return "";
    }
    CSQueue queue = ((CapacityScheduler) scheduler).getQueue(gang.app.queue());
    if (!(queue instanceof AbstractLeafQueue)) {
      return "";
    }
    ResourceCalculator calculator = scheduler.getResourceCalculator();
    Resource wanted = Resources.createResource(0, 0);
    Resource largest = Resources.createResource(0, 0);
    for (Map.Entry<Ask, Integer> part : gang.counts.entrySet()) {
      Resource each = part.getKey().resource();
      Resources.addTo(wanted, Resources.multiply(each, part.getValue()));
      largest = Resources.componentwiseMax(largest, each);
    }
    String label = gang.partition();
    Resource whole = ((CapacityScheduler) scheduler).getRootQueue().getEffectiveMaxCapacity(label);
    for (CSQueue one = queue; one != null; one = one.getParent()) {
      Resource used = one.getQueueResourceUsage().getUsed(label);
      Resource most = one.getEffectiveMaxCapacity(label);
      // A full cluster is no limit: the service decides who waits for room, and who comes first.
      boolean isLimit = !Resources.fitsIn(calculator, whole, most);
      if (isLimit && !Resources.fitsIn(calculator, Resources.add(used, wanted), most)) {
        return "queue " + one.getQueuePath() + " is at its maximum";
      }
    }
    return isUserAtLimit(gang, (AbstractLeafQueue) queue, scheduler, whole, Resources.subtract(wanted, largest))
        ? "user " + gang.app.user + " is at the limit in queue " + queue.getQueuePath() : "";
  }

  /** YARN lets a user's last container pass the limit; so does this. */
  private static boolean isUserAtLimit(Gang gang, AbstractLeafQueue queue, ResourceScheduler scheduler,
      Resource whole, Resource wanted) {
    UsersManager.User user = queue.getUser(gang.app.user);
    if (user == null) {
      return false;
    }
    String label = gang.partition();
    Resource cluster = scheduler.getClusterResource();
    Resource now = queue.getResourceLimitForAllUsers(gang.app.user, cluster, label,
        SchedulingMode.RESPECT_PARTITION_EXCLUSIVITY);
    Resource most = userLimit(now, queue.getQueueResourceUsage().getUsed(label), wanted,
        queue.getEffectiveCapacity(label), queue.getUserLimitFactor(), scheduler.getResourceCalculator(), cluster);
    return !Resources.fitsIn(scheduler.getResourceCalculator(), whole, most)
        && Resources.greaterThan(scheduler.getResourceCalculator(), cluster,
        Resources.add(user.getUsed(label), wanted), most);
  }

  /**
   * The user's limit once `wanted` is allocated. YARN shares what a queue uses, or its capacity if that is more: so the
   * limit grows with the queue, up to `factor` times its capacity (below 0: no bound).
   */
  static Resource userLimit(Resource now, Resource used, Resource wanted, Resource capacity, float factor,
      ResourceCalculator calculator, Resource cluster) {
    Resource shared = Resources.max(calculator, cluster, used, capacity);
    Resource sharedThen = Resources.max(calculator, cluster, Resources.add(used, wanted), capacity);
    if (Resources.equals(shared, Resources.none())) {
      return now;
    }
    double growth = Resources.divide(calculator, cluster, sharedThen, shared) + ROUNDING;
    Resource then = Resources.multiply(now, growth);
    return factor < 0 ? then : Resources.min(calculator, cluster, then, Resources.multiply(capacity, factor));
  }
}
