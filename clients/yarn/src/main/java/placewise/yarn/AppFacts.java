package placewise.yarn;

import java.util.Arrays;
import java.util.HashSet;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ApplicationSchedulingConfig;

/** Facts that all questions of one application share. */
final class AppFacts {
  private static final Set<String> BY_CONTAINER = new HashSet<>(Arrays.asList("SPARK", "MAPREDUCE"));
  final String user;
  final long submitMs;
  final Tags tags;
  /** The class that the application names for the placement of its asks; "" for the cluster's. */
  final String allocator;
  /** Whether each container is a gang of its own: a part of those that it asks for together is of use, too. */
  final boolean isByContainer;
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
    String type = app.getApplicationType() == null ? "" : app.getApplicationType().toUpperCase(Locale.ROOT);
    isByContainer = BY_CONTAINER.contains(type) && tags.gang() == 0 && !tags.isDivisible();
  }

  private AppFacts() {
    app = null;
    user = "";
    submitMs = 0;
    tags = new Tags(null, null);
    allocator = "";
    isByContainer = false;
  }

  /** For a rehearsal. */
  static AppFacts ofNobody() {
    return new AppFacts();
  }

  /** The queue now: an application can be moved. */
  String queue() {
    return app == null ? "" : app.getQueue();
  }

  int priority() {
    return app == null || app.getApplicationPriority() == null ? 0 : app.getApplicationPriority().getPriority();
  }

  /** Puts the reason for waiting into the application's diagnostics. It may wait for YARN's lock of the application. */
  void tell(String reason) {
    RMAppAttempt attempt = app.getCurrentAppAttempt();
    if (attempt != null) {
      attempt.updateAMLaunchDiagnostics(reason.isEmpty() ? null : "Placewise: " + reason);
    }
  }
}
