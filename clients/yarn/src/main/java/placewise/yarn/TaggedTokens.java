package placewise.yarn;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.HashSet;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.security.ContainerTokenIdentifier;
import org.apache.hadoop.yarn.server.resourcemanager.security.RMContainerTokenSecretManager;
import org.apache.hadoop.yarn.server.utils.BuilderUtils;

/** Allocation tags for a container that is handed to its application: the way from here to its NodeManager. */
final class TaggedTokens {
  private TaggedTokens() {}

  /** Adds tags to the container and to its token, and signs the token again. */
  static void tag(Container container, Set<String> tags, RMContainerTokenSecretManager secrets) {
    ContainerTokenIdentifier old;
    try {
      old = BuilderUtils.newContainerTokenIdentifier(container.getContainerToken());
    } catch (IOException error) { // YARN made it a moment ago
      throw new UncheckedIOException(error);
    }
    Set<String> all = new HashSet<>(old.getAllcationTags());
    all.addAll(tags);
    container.setAllocationTags(all);
    container.setContainerToken(secrets.createContainerToken(container.getId(), old.getVersion(), container.getNodeId(),
        old.getApplicationSubmitter(), old.getResource(), old.getPriority(), old.getCreationTime(),
        old.getLogAggregationContext(), old.getNodeLabelExpression(), old.getContainerType(), old.getExecutionType(),
        old.getAllocationRequestId(), all));
  }
}
