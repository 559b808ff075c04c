package placewise.yarn;

import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AppSchedulingInfo;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Cost of the gate for each node and ask that the scheduler looks at. */
public final class GateTest {
  private static final int ASKS = 5_000;
  private static final int NODES = 1_000;
  private static final double MOST_MICROSECONDS = 20;
  private final Configuration configuration = Fakes.configuration("http://127.0.0.1:1");
  private final RMContext context = Fakes.context(configuration, Collections.emptyMap(), () -> null);

  @Before
  public void start() {
    Placewise.start(context, configuration);
  }

  @After
  public void forgetTheAsks() {
    Placewise.start(context, configuration);
  }

  private PlacewiseAllocator<SchedulerNode> heldBack(int number) {
    ApplicationAttemptId attempt = Fakes.attempt(number);
    Ask ask = Fakes.ask(attempt, 2, false);
    Placewise.current().ask(attempt, ask.key).setManaged(true);
    PlacewiseAllocator<SchedulerNode> allocator = new PlacewiseAllocator<>();
    allocator.initialize(
        new AppSchedulingInfo(attempt, "ann", null, null, 0, null, Collections.emptyMap(), context, true), ask.key,
        context);
    return allocator;
  }

  @Test
  public void theGateTakesMicroseconds() {
    List<PlacewiseAllocator<SchedulerNode>> gates = new ArrayList<>();
    for (int number = 0; number < ASKS; number++) {
      gates.add(heldBack(number));
    }
    List<SchedulerNode> nodes = new ArrayList<>();
    for (int number = 0; number < NODES; number++) {
      nodes.add(new FiCaSchedulerNode(Fakes.node("n" + number), false));
    }
    double microseconds = Double.MAX_VALUE;
    for (int round = 0; round < 3; round++) { // the first ones warm the JVM up
      microseconds = microseconds(gates, nodes);
    }
    System.out.printf("gate: %.3f µs per node and ask%n", microseconds);
    assertTrue(microseconds <= MOST_MICROSECONDS);
  }

  /** Processor time of one look at one node for one ask. */
  private static double microseconds(List<PlacewiseAllocator<SchedulerNode>> gates, List<SchedulerNode> nodes) {
    long began = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
    for (SchedulerNode node : nodes) {
      for (PlacewiseAllocator<SchedulerNode> gate : gates) {
        assertFalse(gate.precheckNode(node, SchedulingMode.RESPECT_PARTITION_EXCLUSIVITY, Optional.empty()));
      }
    }
    return (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - began) / 1e3 / gates.size() / nodes.size();
  }
}
