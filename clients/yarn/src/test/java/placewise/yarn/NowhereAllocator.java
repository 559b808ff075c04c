package placewise.yarn;

import java.util.Optional;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.activities.DiagnosticsCollector;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.SchedulingMode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.LocalityAppPlacementAllocator;

/** Refuses every node to ScaleDriver's waiting asks without a service: for the cost of the scheduler's walk alone. */
public final class NowhereAllocator<N extends SchedulerNode> extends LocalityAppPlacementAllocator<N> {
  @Override
  public boolean precheckNode(SchedulerNode node, SchedulingMode mode, Optional<DiagnosticsCollector> diagnostics) {
    return Questions.gpus(getPendingAsk(ResourceRequest.ANY).getPerAllocationResource()) != ScaleDriver.WAITING_GPUS
        && super.precheckNode(node, mode, diagnostics);
  }
}
