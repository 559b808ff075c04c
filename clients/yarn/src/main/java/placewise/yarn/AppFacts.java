package placewise.yarn;

import java.util.Map;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ApplicationSchedulingConfig;

/** What the questions of one application have in common. */
final class AppFacts {
  final String user;
  final long submitMs;
  final Tags tags;
  /** The class that the application names for the placement of its asks; "" for the cluster's. */
  final String allocator;
  private final RMApp app;

  AppFacts(RMApp app) {
    this.app = app;
    user = app.getUser();
    submitMs = app.getSubmitTime();
    Map<String, String> properties = app.getApplicationSchedulingEnvs();
    tags = new Tags(app.getApplicationTags(), properties);
    String named = properties == null ? null
        : properties.get(ApplicationSchedulingConfig.ENV_APPLICATION_PLACEMENT_TYPE_CLASS);
    allocator = named == null ? "" : named;
  }

  /** The queue now: an application can be moved. */
  String queue() {
    return app.getQueue();
  }

  int priority() {
    return app.getApplicationPriority() == null ? 0 : app.getApplicationPriority().getPriority();
  }

  /** Puts the reason for waiting into the application's diagnostics. It may wait for YARN's lock of the application. */
  void tell(String reason) {
    RMAppAttempt attempt = app.getCurrentAppAttempt();
    if (attempt != null) {
      attempt.updateAMLaunchDiagnostics(reason.isEmpty() ? null : "Placewise: " + reason);
    }
  }
}
