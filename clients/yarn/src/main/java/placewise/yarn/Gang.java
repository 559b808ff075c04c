package placewise.yarn;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.Comparator;
import java.util.Deque;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.util.resource.Resources;

/** Containers that are decided together. Guarded by the Broker's monitor. Times are milliseconds of its clock. */
final class Gang {
  /** YARN's order within a queue. */
  static final Comparator<Gang> ORDER =
      Comparator.<Gang>comparingInt(gang -> -gang.app.priority())
          .thenComparing(gang -> gang.attempt.getApplicationId())
          .thenComparingInt(gang -> gang.wave);
  private static final long FIRST_BACKOFF_MS = 1_000;
  private static final long LONGEST_BACKOFF_MS = 60_000;
  private static final Pattern NAME = Pattern.compile("w(\\d{1,9})\\.(\\d{1,9})\\.(\\w+)");

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
  private final Map<Ask, Map<String, Deque<Share>>> shares = new HashMap<>();
  private final Map<ContainerId, Share> shared = new HashMap<>();
  int epoch = 1;
  Stage stage = Stage.WAITING;
  int bound;
  int withdrawals;
  boolean wasAnswered;
  boolean isInFlight;
  /** The service has found no place for it in the empty cluster: nothing is kept free for it. */
  boolean fitsNowhere;
  /** Whether the next question is about its fewest containers alone: YARN would not allocate all of them. */
  boolean isShort;
  private long waitsSinceMs;
  long askedMs = Long.MIN_VALUE / 2;
  private long budgetMs;
  long askedStamp = -1;
  long failingSinceMs = -1;
  long grantedMs;
  long notBeforeMs = Long.MIN_VALUE;
  long partialSinceMs = -1;
  String reason = "";
  String decisionId = "";
  String reservationId = "";
  Collection<String> nodes = new ArrayList<>();
  /** Hosts and racks that the application refuses. */
  Set<String> blacklist = Collections.emptySet();
  Reporter.End end = Reporter.End.FINISHED;
  String endReason = "all containers are over";

  Gang(ApplicationAttemptId attempt, AppFacts app, int wave, String run, long bornMs) {
    this.attempt = attempt;
    this.app = app;
    this.wave = wave;
    this.run = run;
    this.bornMs = bornMs;
  }

  /** A gang of an earlier ResourceManager that runs. `name` is its job id after the attempt's; null if it is strange. */
  static Gang takenOver(ApplicationAttemptId attempt, AppFacts app, String name, Set<ContainerId> live, long nowMs) {
    Matcher parts = NAME.matcher(name);
    if (app == null || !parts.matches()) {
      return null;
    }
    Gang gang = new Gang(attempt, app, Integer.parseInt(parts.group(1)), parts.group(3), nowMs);
    gang.epoch = Integer.parseInt(parts.group(2));
    gang.stage = Stage.RUNNING;
    gang.live.addAll(live);
    return gang;
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

  int fewest() {
    return fewest(app.tags, counts);
  }

  /** Of so many containers of each ask, those with which a gang may start: not all only of one ask for single GPUs. */
  static int fewest(Tags tags, Map<Ask, Integer> counts) {
    int size = counts.values().stream().mapToInt(Integer::intValue).sum();
    int few = tags.fewestGpus();
    boolean isElastic = few > 0 && few < size && counts.size() == 1
        && Questions.gpus(counts.keySet().iterator().next().resource()) == 1;
    return isElastic ? few : size;
  }

  /** `most`: of the containers of an elastic gang that is not granted yet. */
  Claim claim(int most) {
    Resource wanted = Resources.createResource(0, 0);
    Resource largest = Resources.none();
    for (Map.Entry<Ask, Integer> part : counts.entrySet()) {
      Resource each = part.getKey().resource();
      int left = stage == Stage.GRANTED ? part.getKey().untaken(this) : Math.min(most, part.getValue());
      Resources.addTo(wanted, Resources.multiply(each, left));
      largest = Resources.componentwiseMax(largest, each);
    }
    return new Claim(this, wanted, largest);
  }

  /** Node label of the gang's asks; asks of one call with different labels are different gangs. */
  String partition() {
    return counts.keySet().iterator().next().partition();
  }

  /** Whether the service has decided it or the withdrawn gang that it replaces. Such a gang outlives short failures. */
  boolean isHeld() {
    return wasAnswered || withdrawals > 0;
  }

  boolean isHeldBack() {
    return stage == Stage.WAITING || stage == Stage.INCOMPLETE;
  }

  void explain(String text) {
    reason = text;
    counts.keySet().forEach(ask -> ask.explain(text));
  }

  boolean isDue(long nowMs, long stamp, long retryMs) {
    return !wasAnswered || failingSinceMs >= 0 || askedStamp < stamp || nowMs - askedMs >= retryMs;
  }

  /** The service is to be asked about it. */
  void await(long nowMs) {
    stage = Stage.WAITING;
    waitsSinceMs = nowMs;
    explain("asking Placewise");
  }

  /** Whether it has waited for twice the budget without a question, once one could be asked, or its question is late by one. */
  boolean isOverdue(long nowMs, long idleUntilMs, long decideBudgetMs) {
    long patienceMs = decideBudgetMs + (isInFlight ? budgetMs : decideBudgetMs);
    return nowMs - Math.max(Math.max(waitsSinceMs, askedMs), idleUntilMs) > patienceMs;
  }

  /** A question about it is on its way, whose answer may take so long. */
  void sent(long nowMs, long stamp, long answerBudgetMs) {
    isInFlight = true;
    budgetMs = answerBudgetMs;
    askedMs = nowMs;
    askedStamp = stamp;
  }

  void answered() {
    isInFlight = false;
    fitsNowhere = false;
    wasAnswered = true;
    failingSinceMs = -1;
  }

  /** Its containers may go there. */
  void grant(Answer.Placed placed, long nowMs) {
    answered();
    stage = Stage.GRANTED;
    grantedMs = nowMs;
    decisionId = placed.decisionId;
    reservationId = placed.reservationId;
    nodes = placed.nodes();
    split(placed);
    explain("Placewise: runs on " + nodes);
    counts.forEach((ask, count) -> {
      ask.addAsked(-count);
      ask.grant(this, placed.byAsk.get(ask));
    });
  }

  /** YARN may place its containers on any node. */
  void release(String why) {
    stage = Stage.RELEASED;
    counts.forEach((ask, count) -> {
      ask.addAsked(-count);
      ask.open(count, why);
    });
    explain("left to YARN: " + why);
  }

  /** It was withdrawn so many times. After one that came too late it waits before it is asked about again. */
  void backOff(int times, boolean isLate, long nowMs) {
    withdrawals = times;
    long pause = Math.min(LONGEST_BACKOFF_MS, FIRST_BACKOFF_MS << Math.min(times - 1, 6));
    notBeforeMs = isLate ? nowMs + pause : Long.MIN_VALUE;
  }

  /** Keeps the shares of a divisible task until its containers come. */
  private void split(Answer.Placed placed) {
    if (placed.shares.isEmpty()) {
      return;
    }
    int next = 0;
    for (Map.Entry<Ask, List<String>> part : placed.byAsk.entrySet()) {
      Map<String, Deque<Share>> byNode = shares.computeIfAbsent(part.getKey(), ask -> new HashMap<>());
      for (String node : part.getValue()) {
        byNode.computeIfAbsent(node, name -> new ArrayDeque<>()).add(placed.shares.get(next++));
      }
    }
  }

  /** The share of this container, the same each time; null if it has none. */
  Share share(ContainerId container, Ask ask, String node) {
    Deque<Share> left = shares.getOrDefault(ask, Collections.emptyMap()).get(node);
    Share known = shared.get(container);
    if (known == null && left != null && !left.isEmpty()) {
      known = left.poll();
      shared.put(container, known);
    }
    return known;
  }

  /** The next question about this gang gets a new job id. The service frees any reservation of the last one. */
  void forgetQuestion(Reporter reporter, String why) {
    if (isInFlight || wasAnswered || failingSinceMs >= 0) {
      reporter.cancelled(id(), this, why);
      epoch++;
    }
    isInFlight = false;
  }
}
