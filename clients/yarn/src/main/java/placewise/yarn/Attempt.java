package placewise.yarn;

import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/** The gangs of one attempt, and the asks that they are made of. Guarded by the Broker's monitor. */
final class Attempt {
  final AppFacts app;
  final Set<Ask> asks = new LinkedHashSet<>();
  final List<Gang> gangs = new ArrayList<>();
  int waves;
  /** Hosts and racks that the application refuses. */
  Set<String> blacklist = Collections.emptySet();

  Attempt(AppFacts app) {
    this.app = app;
  }

  /** Why its first gang that does not run as decided does not; "" if all do. */
  String reason() {
    for (Gang gang : gangs) {
      if (gang.stage != Gang.Stage.RUNNING) {
        return gang.reason;
      }
    }
    return "";
  }
}
