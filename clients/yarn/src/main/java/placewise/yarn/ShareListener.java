package placewise.yarn;

import java.util.Map;
import org.apache.hadoop.yarn.server.nodemanager.Context;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerEvent;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerEventType;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerImpl;
import org.apache.hadoop.yarn.server.nodemanager.containermanager.container.ContainerState;
import org.apache.hadoop.yarn.server.nodemanager.ContainerStateTransitionListener;

/**
 * On a NodeManager: puts a container's share of a divisible task into its environment. The share is in the container's
 * token, so this calls no service. `yarn.nodemanager.container-state-transition-listener.classes` names it.
 */
public final class ShareListener implements ContainerStateTransitionListener {
  @Override
  public void init(Context context) {}

  @Override
  public void preTransition(ContainerImpl container, ContainerState before, ContainerEvent event) {
    if (before != ContainerState.NEW || event.getType() != ContainerEventType.INIT_CONTAINER) {
      return;
    }
    Map<String, String> environment = container.getLaunchContext().getEnvironment();
    for (String tag : container.getContainerTokenIdentifier().getAllcationTags()) {
      int equals = tag.indexOf('=');
      if (equals > 0 && tag.startsWith(Share.PREFIX)) {
        environment.put(tag.substring(0, equals), tag.substring(equals + 1));
      }
    }
  }

  @Override
  public void postTransition(ContainerImpl container, ContainerState before, ContainerState after,
      ContainerEvent event) {}
}
