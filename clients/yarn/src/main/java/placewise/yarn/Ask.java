package placewise.yarn;

import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;

/**
 * The containers that one attempt requests under one key, and the nodes that they may use. The scheduler's threads read
 * it under a short monitor, in which no thread waits.
 */
final class Ask {
  final ApplicationAttemptId attempt;
  final SchedulerRequestKey key;
  private final Map<String, Deque<Gang>> grants = new HashMap<>();
  private final Map<String, Deque<Gang>> taken = new HashMap<>();
  private final boolean isDryRun;
  private final OpenAsks openAsks;
  private boolean isManaged;
  private boolean isPending;
  private boolean isCounted;
  private Resource resource;
  private String partition = "";
  private int outstanding;
  private int unacquired;
  private int asked;
  private int granted;
  private int open;
  private int early;
  private String openedFor = "";
  private volatile String reason = "asking Placewise";

  /** In a dry run no node is refused. `openAsks` are those of the attempt. */
  Ask(ApplicationAttemptId attempt, SchedulerRequestKey key, boolean isDryRun, OpenAsks openAsks) {
    this.attempt = attempt;
    this.key = key;
    this.isDryRun = isDryRun;
    this.openAsks = openAsks;
  }

  private void count() {
    boolean isOpen = isPending && (!isManaged || isDryRun || open > 0 || !grants.isEmpty());
    if (isOpen != isCounted) {
      isCounted = isOpen;
      openAsks.add(isOpen ? 1 : -1);
    }
  }

  /** Whether YARN has containers of it to allocate, as far as it knows. */
  synchronized void setPending(boolean pending) {
    isPending = pending;
    count();
  }

  /** `unacquired`: containers that YARN has allocated, but had not reported to the application when it asked. */
  synchronized void update(Resource each, String label, int count, int unacquiredContainers) {
    resource = each;
    partition = label == null ? "" : label;
    outstanding = count;
    unacquired = unacquiredContainers;
  }

  synchronized void setManaged(boolean managed) {
    isManaged = managed;
    count();
  }

  synchronized boolean isManaged() {
    return isManaged;
  }

  synchronized Resource resource() {
    return resource;
  }

  synchronized String partition() {
    return partition;
  }

  /** Containers that no question covers yet; below 0 if the application wants fewer than were asked or granted. */
  synchronized int need() {
    return outstanding - unacquired - asked - granted - open + early;
  }

  String reason() {
    return reason;
  }

  void explain(String text) {
    reason = text;
  }

  /** A question about this many containers is due; below 0: dropped. */
  synchronized void addAsked(int count) {
    asked += count;
  }

  /** The containers of a gang may go to these nodes, once each. */
  synchronized void grant(Gang gang, Iterable<String> nodes) {
    for (String node : nodes) {
      grants.computeIfAbsent(node, name -> new ArrayDeque<>()).add(gang);
      granted++;
    }
    count();
  }

  /** Takes back the gang's unused grants. Returns their number. */
  synchronized int withdraw(Gang gang) {
    int withdrawn = 0;
    for (Deque<Gang> waiting : grants.values()) {
      while (waiting.remove(gang)) {
        withdrawn++;
      }
    }
    grants.values().removeIf(Deque::isEmpty);
    granted -= withdrawn;
    count();
    return withdrawn;
  }

  /** YARN may place this many containers on any node, for this reason. */
  synchronized void open(int count, String why) {
    openedFor = why;
    int placed = Math.min(early, count);
    early -= placed;
    open += count - placed;
    count();
  }

  /** Why YARN may place containers freely that no gang holds; "" if it may not. */
  synchronized String openedFor() {
    return openedFor;
  }

  synchronized void shut() {
    open = 0;
    count();
  }

  /** The gate: whether a container may go to this node now. */
  synchronized boolean accepts(String node) {
    return !isManaged || isDryRun || open > 0 || grants.containsKey(node);
  }

  /** Containers that were granted to the gang and that YARN has not allocated. */
  synchronized int untaken(Gang gang) {
    return grants.values().stream().mapToInt(gangs -> Collections.frequency(gangs, gang)).sum();
  }

  synchronized boolean hasGrants() {
    return granted > 0;
  }

  /** YARN has allocated one container there. */
  synchronized void take(String node) {
    outstanding--;
    Deque<Gang> waiting = grants.get(node);
    if (waiting != null) {
      Gang gang = waiting.poll();
      if (waiting.isEmpty()) {
        grants.remove(node);
      }
      granted--;
      taken.computeIfAbsent(node, name -> new ArrayDeque<>()).add(gang);
    } else if (open > 0) {
      open--;
    } else if (isDryRun) {
      early++; // before the answer
    }
    count();
  }

  /** The gang that a container on this node was granted to; null for a container that YARN placed freely. */
  synchronized Gang bind(String node) {
    Deque<Gang> waiting = taken.get(node);
    Gang gang = waiting == null ? null : waiting.poll();
    if (waiting != null && waiting.isEmpty()) {
      taken.remove(node);
    }
    return gang;
  }
}
