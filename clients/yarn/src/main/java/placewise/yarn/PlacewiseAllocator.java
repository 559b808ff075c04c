package placewise.yarn;

import java.util.Collection;
import java.util.Collections;
import java.util.Optional;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerState;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AppSchedulingInfo;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.NodeType;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.activities.DiagnosticsCollector;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ContainerRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.LocalityAppPlacementAllocator;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.PendingAskUpdateResult;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;

/**
 * Lets a container of a managed ask go only to a node of its decision. The ask stays pending in YARN meanwhile:
 * to leave it to YARN, this class stops refusing nodes. `yarn.scheduler.app-placement-allocator.class` names it.
 */
public final class PlacewiseAllocator<N extends SchedulerNode> extends LocalityAppPlacementAllocator<N> {
  private Placewise placewise;
  private Ask ask;

  @Override
  public void initialize(AppSchedulingInfo info, SchedulerRequestKey key, RMContext context) {
    super.initialize(info, key, context);
    placewise = Placewise.current();
    ask = placewise == null ? null : placewise.ask(info.getApplicationAttemptId(), key);
  }

  @Override
  public PendingAskUpdateResult updatePendingAsk(Collection<ResourceRequest> requests, boolean recover) {
    try {
      return update(requests, recover);
    } finally {
      countPending();
    }
  }

  private void countPending() {
    if (ask != null) {
      ask.setPending(getOutstandingAsksCount(ResourceRequest.ANY) > 0);
    }
  }

  private PendingAskUpdateResult update(Collection<ResourceRequest> requests, boolean recover) {
    Set<Ask> changed = PlacewiseProcessor.changedInThisCall();
    ResourceRequest any = any(requests);
    // The ApplicationMaster's own container is asked for outside an allocate call.
    if (ask == null || (changed == null && !ask.isManaged())) {
      return super.updatePendingAsk(requests, recover);
    }
    if (any != null) {
      ask.setManaged(isDecidable(any)); // before the scheduler can see the ask
    }
    PendingAskUpdateResult result = super.updatePendingAsk(requests, recover);
    if (any != null) {
      ask.update(any.getCapability(), getPrimaryRequestedNodePartition(), getOutstandingAsksCount(ResourceRequest.ANY),
          unacquired());
      if (changed != null) {
        changed.add(ask);
      } else {
        placewise.asksChanged(ask.attempt, Collections.singleton(ask));
      }
    }
    return result;
  }

  private static ResourceRequest any(Collection<ResourceRequest> requests) {
    for (ResourceRequest request : requests) {
      if (ResourceRequest.ANY.equals(request.getResourceName())) {
        return request;
      }
    }
    return null;
  }

  /** Whether Placewise may decide it: not for asks without GPUs, nor for those that name hosts and take no other. */
  static boolean isDecidable(ResourceRequest any) {
    return any.getRelaxLocality() && Questions.gpus(any.getCapability()) > 0;
  }

  /** Containers that are allocated and that the application did not know of when it asked: it counts them again. */
  private int unacquired() {
    ApplicationAttemptId id = appSchedulingInfo.getApplicationAttemptId();
    SchedulerApplicationAttempt attempt =
        ((AbstractYarnScheduler<?, ?>) rmContext.getScheduler()).getApplicationAttempt(id);
    if (attempt == null || !attempt.getApplicationAttemptId().equals(id)) {
      return 0;
    }
    int count = 0;
    for (RMContainer container : attempt.getLiveContainers()) {
      boolean isUnacquired = container.getState() == RMContainerState.ALLOCATED;
      count += isUnacquired && schedulerRequestKey.equals(container.getAllocatedSchedulerKey()) ? 1 : 0;
    }
    return count;
  }

  @Override
  public boolean precheckNode(SchedulerNode node, SchedulingMode mode, Optional<DiagnosticsCollector> diagnostics) {
    if (ask != null && !ask.accepts(node.getNodeName())) {
      diagnostics.ifPresent(collector -> collector.collect("Placewise: " + ask.reason(), null));
      return false;
    }
    return super.precheckNode(node, mode, diagnostics);
  }

  @Override
  public boolean canAllocate(NodeType type, SchedulerNode node) {
    return (ask == null || ask.accepts(node.getNodeName())) && super.canAllocate(type, node);
  }

  /** A decided ask does not wait for nodes that the application would prefer. */
  @Override
  public int getUniqueLocationAsks() {
    return ask != null && ask.hasGrants() ? 1 : super.getUniqueLocationAsks();
  }

  @Override
  public ContainerRequest allocate(SchedulerRequestKey key, NodeType type, SchedulerNode node) {
    ContainerRequest request = super.allocate(key, type, node);
    if (ask != null && ask.isManaged()) {
      ask.take(node.getNodeName());
      placewise.wake();
    }
    countPending();
    return request;
  }
}
