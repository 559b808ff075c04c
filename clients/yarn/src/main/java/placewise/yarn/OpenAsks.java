package placewise.yarn;

import java.util.concurrent.atomic.AtomicInteger;

/** How many asks of one attempt want containers and accept some node. */
final class OpenAsks {
  private final AtomicInteger count = new AtomicInteger();
  private volatile boolean hasOthers;

  /** The attempt has asks that Placewise does not see: SchedulingRequests. */
  void keepOpen() {
    hasOthers = true;
  }

  void add(int by) {
    count.addAndGet(by);
  }

  boolean areNone() {
    return !hasOthers && count.get() == 0;
  }
}
