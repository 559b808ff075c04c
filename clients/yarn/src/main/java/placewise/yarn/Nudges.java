package placewise.yarn;

import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceLimits;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSAssignment;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.event.NodeUpdateSchedulerEvent;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.SimpleCandidateNodeSet;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Lets the CapacityScheduler look at the nodes of a decision now. A synchronous one looks at a node when it heartbeats,
 * an asynchronous one once a round. A look allocates one container, so each container gets its own.
 */
final class Nudges {
  private static final Logger LOG = LoggerFactory.getLogger(Nudges.class);
  private static final int MOST = 64;
  /** No look begins later: behind many gangs that are held back one takes long, and the next question waits for it. */
  private static final long LONGEST_NS = 5_000_000;
  private final RMContext context;

  Nudges(RMContext context) {
    this.context = context;
  }

  /** `granted`: the decisions of one answer. */
  void nudge(List<Answer.Placed> granted, Map<String, RMNode> nodes) {
    if (!(context.getScheduler() instanceof CapacityScheduler)) {
      return;
    }
    CapacityScheduler scheduler = (CapacityScheduler) context.getScheduler();
    // Asks the scheduler itself: the property's default differs by release, and capacity-scheduler.xml sets it.
    boolean isAsynchronous = scheduler.getNumAsyncSchedulerThreads() > 0;
    long began = System.nanoTime();
    for (Answer.Placed placed : granted) {
      for (RMNode node : nodesOf(placed, nodes)) {
        if (!isAsynchronous) {
          handle(new NodeUpdateSchedulerEvent(node));
        } else if (System.nanoTime() - began >= LONGEST_NS || !lookSafely(scheduler, node)) {
          return;
        }
      }
    }
  }

  /** The node of each container, of MOST at most. */
  private static List<RMNode> nodesOf(Answer.Placed placed, Map<String, RMNode> nodes) {
    return placed.byAsk.values().stream().flatMap(List::stream).map(nodes::get).filter(Objects::nonNull).limit(MOST)
        .collect(Collectors.toList());
  }

  @SuppressWarnings("unchecked") // the dispatcher's handler takes every event
  private void handle(NodeUpdateSchedulerEvent event) {
    context.getDispatcher().getEventHandler().handle(event);
  }

  /** The scheduler's own threads come to the node within a round: without a look it takes longer, and no more. */
  private boolean lookSafely(CapacityScheduler scheduler, RMNode node) {
    try {
      look(scheduler, node);
      return true;
    } catch (RuntimeException | LinkageError error) {
      LOG.warn("Placewise: the decisions of an answer wait for the scheduler's next round", error);
      return false;
    }
  }

  /** The same that a thread of asynchronous scheduling does with the node. */
  private void look(CapacityScheduler scheduler, RMNode node) {
    FiCaSchedulerNode at = scheduler.getNode(node.getNodeID());
    if (at == null || at.getReservedContainer() != null) { // a reservation is served first
      return;
    }
    Resource cluster = scheduler.getClusterResource();
    Resource ofPartition = context.getNodeLabelManager().getResourceByLabel(at.getPartition(), cluster);
    CSAssignment found = scheduler.getRootQueue().assignContainers(cluster, new SimpleCandidateNodeSet<>(at),
        new ResourceLimits(ofPartition), SchedulingMode.RESPECT_PARTITION_EXCLUSIVITY);
    found.setSchedulingMode(SchedulingMode.RESPECT_PARTITION_EXCLUSIVITY);
    scheduler.submitResourceCommitRequest(cluster, found);
  }
}
