package placewise.yarn;

import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.metrics.SystemMetricsPublisher;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMAppState;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.attempt.RMAppAttemptState;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import java.util.Collections;

/**
 * Receives the events of containers and attempts, and passes them on to YARN's own publisher. Installed once: it stays
 * when the active services restart.
 */
final class Outcomes implements SystemMetricsPublisher {
  private final SystemMetricsPublisher own;

  private Outcomes(SystemMetricsPublisher own) {
    this.own = own;
  }

  /** Returns whether it is in place. YARN sets its own publisher after the active services have been made. */
  static boolean install(RMContext context) {
    SystemMetricsPublisher publisher = context.getSystemMetricsPublisher();
    if (publisher == null) {
      return false;
    }
    if (!(publisher instanceof Outcomes)) {
      context.setSystemMetricsPublisher(new Outcomes(publisher));
    }
    return true;
  }

  @Override
  public void containerCreated(RMContainer container, long time) {
    own.containerCreated(container, time);
    recheck(container);
  }

  @Override
  public void containerFinished(RMContainer container, long time) {
    own.containerFinished(container, time);
    recheck(container);
  }

  private static void recheck(RMContainer container) {
    Placewise placewise = Placewise.current();
    placewise.reporter.recheck(Collections.singleton(container.getContainerId()));
    placewise.wake();
  }

  @Override
  public void appAttemptFinished(RMAppAttempt attempt, RMAppAttemptState state, RMApp app, long time) {
    own.appAttemptFinished(attempt, state, app, time);
    Placewise.current().attemptEnded(attempt.getAppAttemptId(), end(state), "the attempt is " + state);
  }

  static Reporter.End end(RMAppAttemptState state) {
    switch (state) {
      case FINISHED:
      case FINISHING:
        return Reporter.End.FINISHED;
      case KILLED:
        return Reporter.End.CANCELLED;
      default:
        return Reporter.End.FAILED;
    }
  }

  @Override
  public void appCreated(RMApp app, long time) {
    own.appCreated(app, time);
  }

  @Override
  public void appLaunched(RMApp app, long time) {
    own.appLaunched(app, time);
  }

  @Override
  public void appACLsUpdated(RMApp app, String acls, long time) {
    own.appACLsUpdated(app, acls, time);
  }

  @Override
  public void appUpdated(RMApp app, long time) {
    own.appUpdated(app, time);
  }

  @Override
  public void appStateUpdated(RMApp app, YarnApplicationState state, long time) {
    own.appStateUpdated(app, state, time);
  }

  @Override
  public void appFinished(RMApp app, RMAppState state, long time) {
    own.appFinished(app, state, time);
  }

  @Override
  public void appAttemptRegistered(RMAppAttempt attempt, long time) {
    own.appAttemptRegistered(attempt, time);
  }
}
