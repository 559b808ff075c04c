package placewise.yarn;

import java.util.ArrayList;
import java.util.Collection;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.policy.FifoOrderingPolicy;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.policy.IteratorSelector;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.policy.SchedulableEntity;

/**
 * YARN's order first in, first out, without the applications whose asks are all held back: for every node the scheduler
 * would look at each of them in vain. It sees a few of them by turns, so that app-activities say why they wait. A queue's
 * `ordering-policy` names it.
 */
public class PlacewiseOrderingPolicy<S extends SchedulableEntity> extends FifoOrderingPolicy<S> {
  /** Applications that are seen by turns, in each look at a node. */
  static final int BY_TURNS = 4;
  private final AtomicLong changes = new AtomicLong();
  private final AtomicLong looks = new AtomicLong();
  /** The scheduler's threads read it without a lock. */
  private volatile Order<S> order = new Order<>(-1, null);

  @Override
  public Iterator<S> getAssignmentIterator(IteratorSelector selector) {
    Order<S> known = order;
    long change = changes.get();
    if (known.change != change || known.placewise != Placewise.current()) {
      known = new Order<>(change, Placewise.current()); // before it looks: a later change makes another one
      Iterator<S> all = super.getAssignmentIterator(selector);
      while (all.hasNext()) {
        S application = all.next();
        known.entries.add(new Entry<>(application, attemptOf(application)));
      }
      order = known;
    }
    return new OpenIterator<>(known, looks.getAndIncrement() * BY_TURNS);
  }

  /** Null of an application that Placewise cannot know. */
  ApplicationAttemptId attemptOf(S application) {
    return application instanceof SchedulerApplicationAttempt
        ? ((SchedulerApplicationAttempt) application).getApplicationAttemptId() : null;
  }

  @Override
  public void addSchedulableEntity(S application) {
    super.addSchedulableEntity(application);
    changes.incrementAndGet();
  }

  @Override
  public boolean removeSchedulableEntity(S application) {
    boolean isRemoved = super.removeSchedulableEntity(application);
    changes.incrementAndGet();
    return isRemoved;
  }

  @Override
  public void addAllSchedulableEntities(Collection<S> applications) {
    super.addAllSchedulableEntities(applications);
    changes.incrementAndGet();
  }

  @Override
  public String getInfo() {
    return "PlacewiseOrderingPolicy";
  }

  /** The queue's applications in order, after so many changes. */
  private static final class Order<S> {
    private final long change;
    private final Placewise placewise;
    private final List<Entry<S>> entries = new ArrayList<>();

    Order(long change, Placewise placewise) {
      this.change = change;
      this.placewise = placewise;
    }
  }

  /** An application. It is small: a look at thousands of them must stay in the processor's caches. */
  private static final class Entry<S> {
    private final S application;
    private final ApplicationAttemptId attempt;
    private OpenAsks asks;

    Entry(S application, ApplicationAttemptId attempt) {
      this.application = application;
      this.attempt = attempt;
    }

    boolean isOpen(Placewise placewise) {
      if (asks == null && placewise != null && attempt != null) {
        asks = placewise.openAsks(attempt);
      }
      return asks == null || !asks.areNone();
    }
  }

  /** The applications with an ask that accepts some node when it is their turn, and those from `first` on. */
  private static final class OpenIterator<S> implements Iterator<S> {
    private final Placewise placewise;
    private final List<Entry<S>> all;
    private final long first;
    private int index;
    private S next;

    OpenIterator(Order<S> order, long first) {
      placewise = order.placewise;
      all = order.entries;
      this.first = all.isEmpty() ? 0 : first % all.size();
    }

    @Override
    public boolean hasNext() {
      while (next == null && index < all.size()) {
        Entry<S> entry = all.get(index);
        long after = index - first + (index < first ? all.size() : 0);
        boolean hasTurn = after < BY_TURNS;
        next = hasTurn || entry.isOpen(placewise) ? entry.application : null;
        index++;
      }
      return next != null;
    }

    @Override
    public S next() {
      if (!hasNext()) {
        throw new NoSuchElementException();
      }
      S found = next;
      next = null;
      return found;
    }
  }
}
