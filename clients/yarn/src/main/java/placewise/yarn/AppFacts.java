package placewise.yarn;

import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;

/** What the questions of one application have in common. */
final class AppFacts {
  final String user;
  final long submitMs;
  final Tags tags;
  private final RMApp app;

  AppFacts(RMApp app) {
    this.app = app;
    user = app.getUser();
    submitMs = app.getSubmitTime();
    tags = new Tags(app.getApplicationTags(), app.getApplicationSchedulingEnvs());
  }

  /** The queue now: an application can be moved. */
  String queue() {
    return app.getQueue();
  }

  int priority() {
    return app.getApplicationPriority() == null ? 0 : app.getApplicationPriority().getPriority();
  }

  RMApp app() {
    return app;
  }
}
