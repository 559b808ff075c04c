package placewise.yarn;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;

/** Containers that are decided together. Guarded by the Broker's monitor. Times are milliseconds of its clock. */
final class Gang {
  enum Stage {
    /** Not every container has been asked for yet. */
    INCOMPLETE,
    /** Held until the service decides. */
    WAITING,
    /** Decided; YARN has not allocated all of it. */
    GRANTED,
    /** All containers are allocated. */
    RUNNING,
    /** Left to YARN's own scheduling. */
    RELEASED,
    /** Over, or dissolved. */
    ENDED
  }

  final ApplicationAttemptId attempt;
  final AppFacts app;
  final int wave;
  final Map<Ask, Integer> counts = new LinkedHashMap<>();
  final Set<ContainerId> live = new HashSet<>();
  final long bornMs;
  final String run;
  int epoch = 1;
  Stage stage = Stage.WAITING;
  int bound;
  int withdrawals;
  boolean wasAnswered;
  boolean isInFlight;
  long askedMs = Long.MIN_VALUE / 2;
  long askedStamp = -1;
  long failingSinceMs = -1;
  long grantedMs;
  long notBeforeMs = Long.MIN_VALUE;
  long partialSinceMs = -1;
  String reason = "";
  String decisionId = "";
  String reservationId = "";
  Collection<String> nodes = new ArrayList<>();
  Reporter.End end = Reporter.End.FINISHED;
  String endReason = "all containers are over";

  Gang(ApplicationAttemptId attempt, AppFacts app, int wave, String run, long bornMs) {
    this.attempt = attempt;
    this.app = app;
    this.wave = wave;
    this.run = run;
    this.bornMs = bornMs;
  }

  /**
   * Job id at the service. A changed question is another job, and so is one of a restarted ResourceManager (`run`): the
   * service repeats its answer for the same id.
   */
  String id() {
    return attempt + "/w" + wave + "." + epoch + "." + run;
  }

  int size() {
    return counts.values().stream().mapToInt(Integer::intValue).sum();
  }

  /** Node label of the gang's asks; asks of one call with different labels are different gangs. */
  String partition() {
    return counts.keySet().iterator().next().partition();
  }

  /** Whether the service has decided it, or what it was made of: such a gang outlives short failures. */
  boolean isHeld() {
    return wasAnswered || withdrawals > 0;
  }

  void explain(String text) {
    reason = text;
    counts.keySet().forEach(ask -> ask.explain(text));
  }
}
