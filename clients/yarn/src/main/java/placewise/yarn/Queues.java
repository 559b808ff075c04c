package placewise.yarn;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.AbstractLeafQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;

/** The queues that applications can be in, and the names of `placewise.queues`. */
final class Queues {
  private Queues() {}

  /** Whether a list of names and paths has the queue of this path. */
  static boolean names(Collection<String> list, String path) {
    return list.contains(path) || list.contains(leaf(path));
  }

  private static String leaf(String path) {
    return path.substring(path.lastIndexOf('.') + 1);
  }

  static List<CSQueue> leaves(CapacityScheduler scheduler) {
    List<CSQueue> leaves = new ArrayList<>();
    collect(scheduler.getRootQueue(), leaves);
    return leaves;
  }

  private static void collect(CSQueue queue, Collection<CSQueue> leaves) {
    if (queue instanceof AbstractLeafQueue) {
      leaves.add(queue);
    }
    if (queue.getChildQueues() != null) {
      queue.getChildQueues().forEach(child -> collect(child, leaves));
    }
  }

  /** The names that no queue has now. */
  static Set<String> missing(Collection<String> names, ResourceScheduler scheduler) {
    if (!(scheduler instanceof CapacityScheduler) || names.isEmpty()) {
      return new TreeSet<>();
    }
    return missing(names, leaves((CapacityScheduler) scheduler).stream().map(CSQueue::getQueuePath)
        .collect(Collectors.toList()));
  }

  /** The names that no queue of capacity-scheduler.xml has. */
  static Set<String> missing(Collection<String> names, Configuration scheduler) {
    List<String> leaves = new ArrayList<>();
    collect("root", scheduler, leaves);
    return missing(names, leaves);
  }

  private static void collect(String path, Configuration scheduler, Collection<String> leaves) {
    String[] children = scheduler.getTrimmedStrings("yarn.scheduler.capacity." + path + ".queues");
    if (children.length == 0) {
      leaves.add(path);
    }
    for (String child : children) {
      collect(path + "." + child, scheduler, leaves);
    }
  }

  private static Set<String> missing(Collection<String> names, Collection<String> paths) {
    Set<String> missing = new TreeSet<>(names);
    for (String path : paths) {
      missing.remove(path);
      missing.remove(leaf(path));
    }
    return missing;
  }
}
