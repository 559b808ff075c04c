package placewise.yarn;

import java.util.HashMap;
import java.util.List;
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

/** Whether YARN would allocate the gangs of one question now. A gang that it would hold back must reserve no GPUs. */
final class Limits {
  private static final double ROUNDING = 1e-6; // the quotient is a float, and the product loses its fraction
  private final ResourceScheduler scheduler;
  private final ResourceCalculator calculator;
  private final String label;
  /** Resources that earlier gangs will take, by the path of each queue above them. */
  private final Map<String, Resource> ofQueue = new HashMap<>();
  /** The same by leaf queue and user. */
  private final Map<List<String>, Resource> ofUser = new HashMap<>();

  Limits(ResourceScheduler scheduler, String label) {
    this.scheduler = scheduler;
    this.label = label;
    calculator = scheduler.getResourceCalculator();
  }

  private AbstractLeafQueue leaf(Claim claim) {
    CSQueue queue = scheduler instanceof CapacityScheduler
        ? ((CapacityScheduler) scheduler).getQueue(claim.queue) : null;
    return queue instanceof AbstractLeafQueue ? (AbstractLeafQueue) queue : null;
  }

  /** The claim comes before those that are looked at later. */
  void add(Claim claim) {
    CSQueue leaf = leaf(claim);
    if (leaf == null || !claim.label.equals(label)) {
      return;
    }
    for (CSQueue one = leaf; one != null; one = one.getParent()) {
      ofQueue.merge(one.getQueuePath(), claim.wanted, Resources::add);
    }
    ofUser.merge(claim.userOf(leaf.getQueuePath()), claim.wanted, Resources::add);
  }

  /**
   * The same for the first gang of a queue while it waits. Otherwise smaller gangs behind it could hold the queue at
   * its maximum for ever. Nothing is kept for a gang that YARN would not allocate in an empty queue, or whose user is
   * at the limit.
   */
  void keepFor(Claim head) {
    AbstractLeafQueue leaf = leaf(head);
    if (leaf != null && head.isKept && fullQueue(head, leaf, true) == null && !isUserAtLimit(head, leaf)) {
      add(head);
    }
  }

  /** The limit that the gang would pass, or "". */
  String passed(Claim claim) {
    AbstractLeafQueue leaf = leaf(claim);
    if (leaf == null) {
      return "";
    }
    CSQueue full = fullQueue(claim, leaf, false);
    if (full != null) {
      return "queue " + full.getQueuePath() + " is at its maximum";
    }
    return isUserAtLimit(claim, leaf) ? "user " + claim.user + " is at the limit in queue " + leaf.getQueuePath() : "";
  }

  private Resource whole() {
    return ((CapacityScheduler) scheduler).getRootQueue().getEffectiveMaxCapacity(label);
  }

  /** The first queue, from this one up, that the claim would overfill, or null; `isEmpty`: as if all were empty. */
  private CSQueue fullQueue(Claim claim, CSQueue leaf, boolean isEmpty) {
    for (CSQueue one = leaf; one != null; one = one.getParent()) {
      Resource used = isEmpty ? Resources.none()
          : Resources.add(one.getQueueResourceUsage().getUsed(label), before(ofQueue, one.getQueuePath()));
      Resource most = one.getEffectiveMaxCapacity(label);
      // A full cluster is no limit: the service decides which gangs wait, and in which order.
      boolean isLimit = !Resources.fitsIn(calculator, whole(), most);
      if (isLimit && !Resources.fitsIn(calculator, Resources.add(used, claim.wanted), most)) {
        return one;
      }
    }
    return null;
  }

  private static <T> Resource before(Map<T, Resource> of, T key) {
    return of.getOrDefault(key, Resources.none());
  }

  /** YARN lets a user's last container pass the limit; so does this. */
  private boolean isUserAtLimit(Claim claim, AbstractLeafQueue queue) {
    UsersManager.User user = queue.getUser(claim.user);
    if (user == null) {
      return false;
    }
    Resource wanted = Resources.subtract(claim.wanted, claim.largest);
    Resource cluster = scheduler.getClusterResource();
    Resource now = queue.getResourceLimitForAllUsers(claim.user, cluster, label,
        SchedulingMode.RESPECT_PARTITION_EXCLUSIVITY);
    Resource most = userLimit(now, queue.getQueueResourceUsage().getUsed(label),
        Resources.add(before(ofQueue, queue.getQueuePath()), wanted), queue.getEffectiveCapacity(label),
        queue.getUserLimitFactor(), calculator, cluster);
    Resource then = Resources.add(Resources.add(user.getUsed(label), before(ofUser, claim.userOf(queue.getQueuePath()))), wanted);
    return !Resources.fitsIn(calculator, whole(), most) && Resources.greaterThan(calculator, cluster, then, most);
  }

  /**
   * The user's limit once `wanted` is allocated. YARN shares out the larger of a queue's usage and its capacity. So
   * the limit grows with the queue, up to `factor` times its capacity (below 0: no bound).
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
