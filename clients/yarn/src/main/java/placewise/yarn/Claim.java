package placewise.yarn;

import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.yarn.api.records.Resource;

/** Snapshot of the resources that YARN has still to allocate to a gang. */
final class Claim {
  final String queue;
  final String user;
  final String label;
  final Resource wanted;
  /** The largest amounts of any of its containers. */
  final Resource largest;
  /** Whether its share of the queue is kept for it while it waits. */
  final boolean isKept;

  Claim(Gang gang, Resource wanted, Resource largest) {
    queue = gang.app.queue();
    user = gang.app.user;
    label = gang.partition();
    this.wanted = wanted;
    this.largest = largest;
    isKept = gang.stage == Gang.Stage.WAITING && !gang.fitsNowhere;
  }

  /** Its user in a leaf queue of this path. */
  List<String> userOf(String path) {
    return Arrays.asList(path, user);
  }
}
