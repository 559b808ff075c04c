package placewise.yarn;

import static org.junit.Assert.assertEquals;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacitySchedulerConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeUpdateSchedulerEvent;
import org.junit.Test;

/** A synchronous scheduler gets an event for each container of a decision, an asynchronous one is made to look there. */
public final class NudgeTest extends WholeAdapter {
  private final List<Object> nudges = Collections.synchronizedList(new ArrayList<>());
  private final List<String> looks = Collections.synchronizedList(new ArrayList<>());

  /** YARN's own, which reads its own configuration: yarn-site.xml may lack the property. */
  private CapacityScheduler scheduler(String asynchronous) throws Exception {
    return Fakes.scheduler(own(asynchronous), node -> looks.add(node.getHost()));
  }

  private static CapacitySchedulerConfiguration own(String asynchronous) {
    CapacitySchedulerConfiguration own = new CapacitySchedulerConfiguration();
    own.set("yarn.scheduler.capacity.root.queues", "gpu");
    own.set("yarn.scheduler.capacity.root.gpu.capacity", "100");
    if (!asynchronous.isEmpty()) {
      own.set(CapacitySchedulerConfiguration.SCHEDULE_ASYNCHRONOUSLY_ENABLE, asynchronous);
    }
    return own;
  }

  private void gangGoesToN2(String asynchronous) throws Exception {
    service.placeOn("n2");
    start(Fakes.activeContext(configuration, scheduler(asynchronous), event -> {
      assertEquals(NodeUpdateSchedulerEvent.class, event.getClass());
      nudges.add(event);
    }, "n1", "n2"));
    Ask ask = submit(1, 2);
    until(ask::hasGrants);
    Ask next = submit(2, 1); // when it has its place, the first gang's nudges are over
    until(next::hasGrants);
  }

  @Test
  public void aSynchronousSchedulerIsNudgedOncePerContainer() throws Exception {
    gangGoesToN2("false");
    until(() -> nudges.size() == 3);
  }

  @Test
  public void aDecisionNudgesSixtyFourTimesAtMost() throws Exception {
    service.placeOn("n2");
    start(Fakes.activeContext(configuration, scheduler("false"), nudges::add, "n1", "n2"));
    until(submit(1, 70)::hasGrants);
    until(submit(2, 1)::hasGrants);
    until(() -> nudges.size() == 64 + 1);
  }

  @Test
  public void anAsynchronousSchedulerLooksOncePerContainerAndGetsNoEvent() throws Exception {
    gangGoesToN2("true");
    until(() -> looks.size() == 3);
    assertEquals(Collections.nCopies(3, "n2"), looks);
    assertEquals(0, nudges.size());
  }

  @Test
  public void noLookOfAnAnswerBeginsAfterFiveMilliseconds() throws Exception {
    service.placeOn("n2");
    CapacityScheduler slow = Fakes.scheduler(own("true"), node -> {
      looks.add(node.getHost());
      LockSupport.parkNanos(20_000_000);
    });
    start(Fakes.activeContext(configuration, slow, nudges::add, "n1", "n2"));
    until(submit(1, 8)::hasGrants);
    until(submit(2, 1)::hasGrants);
    until(() -> looks.size() == 2);
  }

  @Test
  public void aLookThatFailsHarmsNoDecision() throws Exception {
    service.placeOn("n2");
    CapacityScheduler failing = Fakes.scheduler(own("true"), node -> {
      looks.add(node.getHost());
      throw new IllegalStateException("no such node");
    });
    start(Fakes.activeContext(configuration, failing, nudges::add, "n1", "n2"));
    until(submit(1, 2)::hasGrants);
    until(submit(2, 1)::hasGrants);
    until(() -> looks.size() == 2); // one of each answer
    assertEquals(Collections.nCopies(2, "n2"), looks);
  }

  @Test
  public void withoutThePropertyHadoopsOwnDefaultCounts() throws Exception {
    boolean isAsynchronous = new CapacitySchedulerConfiguration().getScheduleAynschronously(); // 3.5.0: true; 3.4: false
    gangGoesToN2("");
    if (isAsynchronous) {
      assertEquals(0, nudges.size());
    } else {
      until(() -> nudges.size() == 3);
    }
  }
}
