package placewise.yarn;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.function.BiPredicate;
import java.util.function.Function;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * All gangs of this ResourceManager and the changes of their stages. It knows neither the network nor the scheduler:
 * YARN's threads bring changes, the Asker's thread brings answers. One monitor, held for microseconds.
 */
final class Broker {
  private static final Logger LOG = LoggerFactory.getLogger(Broker.class);
  private final Settings settings;
  private final Reporter reporter;
  private final PlacewiseMetrics metrics;
  private final LongSupplier clock;
  private final Runnable wake;
  private final Map<ApplicationAttemptId, Attempt> attempts = new HashMap<>();
  private final Map<ContainerId, Gang> containers = new HashMap<>();
  /** Gangs without a first decision, and others for a short while: few of all that wait. */
  private final List<Gang> unheld = new ArrayList<>();
  private long idleUntilMs = Long.MIN_VALUE / 2;
  private final Forming forming;
  private long stamp;

  Broker(Settings settings, Reporter reporter, PlacewiseMetrics metrics, LongSupplier clock, Runnable wake) {
    this.settings = settings;
    this.reporter = reporter;
    this.metrics = metrics;
    this.clock = clock;
    this.wake = wake;
    this.forming = new Forming(clock, unheld);
  }

  // --- news from YARN ---------------------------------------------------------------------------------------------

  /** The asks of one call have changed. Containers without a question form a gang; surplus containers are dropped. */
  synchronized void asksChanged(ApplicationAttemptId id, AppFacts app, Collection<Ask> changed) {
    Attempt attempt = attempts.computeIfAbsent(id, key -> new Attempt(app));
    attempt.asks.addAll(changed);
    for (Ask ask : changed) {
      for (int surplus = -ask.need(); surplus > 0; surplus = -ask.need()) {
        if (!drop(attempt, ask, surplus)) {
          break;
        }
      }
    }
    forming.form(id, attempt);
    wake.run();
  }

  /** The attempt refuses these hosts and racks from now on. Its gangs that wait are another question then. */
  synchronized void blacklistChanged(ApplicationAttemptId id, AppFacts app, Set<String> blacklist) {
    Attempt attempt = attempts.computeIfAbsent(id, key -> new Attempt(app));
    if (attempt.blacklist.equals(blacklist)) {
      return;
    }
    attempt.blacklist = blacklist;
    for (Gang gang : attempt.gangs) {
      gang.blacklist = blacklist;
      if (gang.isHeldBack()) {
        gang.forgetQuestion(reporter, "the application refuses other nodes");
        gang.askedStamp = -1; // at once
      }
    }
    wake.run();
  }

  /** Takes up to `surplus` containers out of the youngest gang of this ask. False if no gang has any to give. */
  private boolean drop(Attempt attempt, Ask ask, int surplus) {
    for (int i = attempt.gangs.size() - 1; i >= 0; i--) {
      Gang gang = attempt.gangs.get(i);
      if (!gang.counts.containsKey(ask)) {
        continue;
      }
      if (gang.isHeldBack()) {
        gang.forgetQuestion(reporter, "the application asks for fewer containers");
        forming.shrink(attempt, gang, ask, Math.min(surplus, gang.counts.get(ask)));
        return true;
      }
      if (gang.stage == Gang.Stage.GRANTED) {
        dissolve(attempt, gang, "the application asks for fewer containers");
        return true;
      }
      if (gang.stage == Gang.Stage.RELEASED && ask.need() < 0) {
        ask.shut();
        return ask.need() < 0;
      }
    }
    return false;
  }

  /** No container of this attempt will be allocated any more. Those that it has end one by one. */
  synchronized void attemptEnded(ApplicationAttemptId id, Reporter.End end, String why) {
    Attempt attempt = attempts.get(id);
    if (attempt == null) {
      return;
    }
    attempt.asks.clear();
    for (Gang gang : new ArrayList<>(attempt.gangs)) {
      gang.end = end;
      gang.endReason = why;
      if (gang.stage == Gang.Stage.RUNNING) {
        gang.partialSinceMs = gang.partialSinceMs < 0 ? clock.getAsLong() : gang.partialSinceMs;
        continue;
      }
      if (gang.stage != Gang.Stage.RELEASED) {
        reporter.cancelled(gang.id(), gang, "the attempt is over");
      }
      scatter(gang);
      end(gang);
    }
    if (attempt.gangs.isEmpty()) {
      attempts.remove(id);
    }
    changed();
  }

  /** A container is allocated. Returns whether it belongs to a gang that the service has decided. */
  synchronized boolean containerStarted(ContainerId container, String node, Ask ask) {
    if (containers.containsKey(container)) {
      return true;
    }
    Gang gang = ask == null ? null : ask.bind(node);
    if (gang == null || gang.stage != Gang.Stage.GRANTED) {
      return false;
    }
    containers.put(container, gang);
    gang.live.add(container);
    gang.bound++;
    if (gang.bound == gang.size()) {
      gang.stage = Gang.Stage.RUNNING;
      gang.explain("placed by Placewise");
      reporter.started(gang);
      metrics.startedAsDecided.incr();
      LOG.info("Placewise: gang {} runs as decided, decision {}", gang.id(), gang.decisionId);
    }
    return true;
  }

  /** A container is over. Returns whether it belonged to a gang. */
  synchronized boolean containerEnded(ContainerId container) {
    Gang gang = containers.remove(container);
    if (gang == null) {
      return false;
    }
    gang.live.remove(container);
    changed();
    if (gang.live.isEmpty() && gang.stage == Gang.Stage.RUNNING) {
      reporter.ended(gang, gang.end, gang.endReason);
      end(gang);
    } else if (gang.partialSinceMs < 0) {
      gang.partialSinceMs = clock.getAsLong();
    }
    return true;
  }

  private void end(Gang gang) {
    gang.stage = Gang.Stage.ENDED;
    Attempt attempt = attempts.get(gang.attempt);
    if (attempt != null) {
      attempt.gangs.remove(gang);
      if (attempt.gangs.isEmpty() && attempt.asks.isEmpty()) {
        attempts.remove(gang.attempt);
      }
    }
  }

  /** GPUs may have become free: gangs that wait are asked about again. */
  synchronized void changed() {
    stamp++;
    wake.run();
  }

  // --- for the Asker ----------------------------------------------------------------------------------------------

  /** Gangs to ask about now, by queue and node label, each list in YARN's order. */
  synchronized Map<String, List<Gang>> due() {
    long now = clock.getAsLong();
    Map<String, List<Gang>> due = new TreeMap<>();
    for (Attempt attempt : attempts.values()) {
      for (Gang gang : attempt.gangs) {
        complete(gang, now);
        if (gang.stage == Gang.Stage.WAITING && now >= gang.notBeforeMs) {
          due.computeIfAbsent(gang.app.queue() + "\u0000" + gang.partition(), name -> new ArrayList<>()).add(gang);
        }
      }
    }
    due.values().removeIf(gangs -> gangs.stream().noneMatch(gang -> gang.isDue(now, stamp, settings.retryMs)));
    due.values().forEach(gangs -> gangs.sort(Gang.ORDER));
    return due;
  }

  private void complete(Gang gang, long now) {
    if (gang.stage == Gang.Stage.INCOMPLETE && now - gang.bornMs >= settings.gangTimeoutMs) {
      LOG.warn("Placewise: gang {} is asked as it stands, with {} containers: the rest of its declared size did not"
          + " come in time", gang.id(), gang.size());
      gang.await(now);
    }
  }

  /** Marks those that are still to be asked about, and returns them. */
  synchronized List<Gang> sending(List<Gang> gangs) {
    List<Gang> sent = gangs.stream().filter(gang -> gang.stage == Gang.Stage.WAITING).collect(Collectors.toList());
    sent.forEach(gang -> gang.sent(clock.getAsLong(), stamp, settings.budgetMs(sent.size())));
    return sent;
  }

  /** The gang may run there: `tasks` gives the nodes of each ask's containers. False: it does not wait any more. */
  synchronized boolean granted(Gang gang, String jobId, Answer.Placed placed) {
    if (gang.stage != Gang.Stage.WAITING || !gang.id().equals(jobId)) {
      reporter.cancelled(jobId, placed.decisionId, placed.reservationId, "the gang does not wait any more");
      return false;
    }
    if (settings.isDryRun) {
      LOG.info("Placewise dry run: gang {} would run on {}, decision {}", jobId, placed.nodes(), placed.decisionId);
      open(gang, "dry run");
      return false;
    }
    leaveOut(gang, gang.size() - placed.size());
    gang.grant(placed, clock.getAsLong());
    metrics.admitted.incr();
    LOG.info("Placewise: gang {} of {} containers goes to {}, decision {}", jobId, gang.size(), placed.nodes(),
        placed.decisionId);
    return true;
  }

  /** An elastic gang starts with fewer containers. The others are another question. */
  private void leaveOut(Gang gang, int count) {
    if (count > 0) {
      Ask ask = gang.counts.keySet().iterator().next();
      gang.counts.merge(ask, -count, Integer::sum);
      ask.addAsked(-count);
      forming.form(gang.attempt, attempts.get(gang.attempt));
      wake.run();
    }
  }

  /** The service has a place for the gang, and YARN would not allocate it: the place is free again. */
  synchronized void givesBack(Gang gang, String jobId, Answer.Placed placed, String why) {
    reporter.cancelled(jobId, placed.decisionId, placed.reservationId, why);
    waits(gang, jobId, why, placed.decisionId);
    if (gang.stage == Gang.Stage.WAITING && gang.id().equals(jobId)) {
      gang.epoch++;
    }
    changed();
  }

  /** The service holds the gang back. */
  synchronized void waits(Gang gang, String jobId, String why, String decisionId) {
    waits(gang, jobId, why, decisionId, false);
  }

  /** The service holds the gang back, and would do so in an empty cluster. */
  synchronized void waitsInVain(Gang gang, String jobId, String why, String decisionId) {
    waits(gang, jobId, why, decisionId, true);
  }

  private void waits(Gang gang, String jobId, String why, String decisionId, boolean fitsNowhere) {
    if (gang.stage != Gang.Stage.WAITING || !gang.id().equals(jobId)) {
      return;
    }
    gang.answered();
    gang.fitsNowhere = fitsNowhere;
    if (settings.isDryRun) {
      LOG.info("Placewise dry run: gang {} would wait: {}, decision {}", jobId, why, decisionId);
      open(gang, "dry run");
      return;
    }
    if (!why.equals(gang.reason)) {
      LOG.info("Placewise: gang {} waits: {}, decision {}", jobId, why, decisionId);
      gang.explain(why);
    }
    metrics.waited.incr();
  }

  /** The gang fits no empty cluster, or the service cannot read it. `isReleased`: left to YARN; else it waits. */
  synchronized void impossible(Gang gang, String jobId, String why, boolean isReleased) {
    String reason = "impossible here: " + why;
    if (!isReleased) {
      waitsInVain(gang, jobId, reason, "");
    } else if (gang.stage == Gang.Stage.WAITING && gang.id().equals(jobId)) {
      gang.answered();
      release(gang, reason);
    }
  }

  /** No answer came. A gang that was asked about for the first time goes at once, others after a while. */
  synchronized void failed(Collection<Gang> gangs, String why) {
    long now = clock.getAsLong();
    for (Gang gang : gangs) {
      if (gang.stage != Gang.Stage.WAITING) {
        continue;
      }
      if (gang.failingSinceMs < 0) {
        gang.failingSinceMs = now;
      }
      gang.isInFlight = false;
      metrics.undecided.incr();
      if (settings.releaseAfterMs >= 0 && (!gang.isHeld() || now - gang.failingSinceMs >= settings.releaseAfterMs)) {
        reporter.cancelled(gang.id(), gang, "left to YARN");
        release(gang, "no decision: " + why);
      }
    }
  }

  /** YARN allocates nothing yet, and no gang is asked about: the patience with all of them begins later. */
  synchronized void idle() {
    idleUntilMs = clock.getAsLong();
  }

  /**
   * Releases gangs without a decision: those whose question is overdue and, with `isAll`, those without a question
   * under way. Called often.
   */
  synchronized void releaseUnasked(String why, boolean isAll) {
    long now = clock.getAsLong();
    unheld.removeIf(gang -> !gang.isHeldBack() || gang.isHeld());
    failed(unheld.stream()
        .filter(gang -> isAll && !gang.isInFlight || gang.isOverdue(now, idleUntilMs, settings.decideBudgetMs))
        .collect(Collectors.toList()), why);
  }

  private void release(Gang gang, String why) {
    open(gang, why);
    LOG.info("Placewise: gang {} is left to YARN: {}", gang.id(), why);
  }

  private void open(Gang gang, String why) {
    gang.release(why);
    metrics.released.incr();
  }

  /** Leaves to YARN the gangs that must not be held back; `refusal` gives the reason, or "". */
  synchronized void releaseRefused(Function<Gang, String> refusal) {
    for (Gang gang : select(Gang::isHeldBack)) {
      String why = refusal.apply(gang);
      if (!why.isEmpty()) {
        gang.forgetQuestion(reporter, "left to YARN");
        release(gang, why);
      }
    }
  }

  /** Takes back grants that were not used in time, or that lie on a node that `isUsable` refuses for this blacklist. */
  synchronized void withdrawOverdue(BiPredicate<Set<String>, String> isUsable) {
    long latest = clock.getAsLong() - settings.startTimeoutMs;
    for (Gang gang : select(gang -> gang.stage == Gang.Stage.GRANTED)) {
      boolean isLate = gang.grantedMs < latest;
      if (isLate || !gang.nodes.stream().allMatch(node -> isUsable.test(gang.blacklist, node))) {
        askAnew(gang, isLate ? "not started in time" : "a node of the decision is lost or blacklisted", isLate);
      }
    }
  }

  private void askAnew(Gang gang, String why, boolean isLate) {
    Attempt attempt = attempts.get(gang.attempt);
    dissolve(attempt, gang, why);
    for (Gang next : forming.form(gang.attempt, attempt)) {
      if (next.stage == Gang.Stage.WAITING) {
        next.backOff(gang.withdrawals + 1, isLate, clock.getAsLong());
      }
    }
  }

  /** The gang's unused grants go back. Containers that it has are counted one by one from now on. */
  private void dissolve(Attempt attempt, Gang gang, String why) {
    LOG.warn("Placewise: gang {} is withdrawn: {}", gang.id(), why);
    metrics.withdrawn.incr();
    gang.counts.keySet().forEach(ask -> ask.withdraw(gang));
    reporter.cancelled(gang.id(), gang, "withdrawn: " + why);
    scatter(gang);
    gang.stage = Gang.Stage.ENDED;
    attempt.gangs.remove(gang);
    changed();
  }

  private void scatter(Gang gang) {
    gang.live.forEach(containers::remove);
    reporter.recheck(gang.live);
    gang.live.clear();
  }

  /** Gangs some of whose containers have ended for a while: their rest is counted container by container. */
  synchronized void splitPartial(long patienceMs) {
    long latest = clock.getAsLong() - patienceMs;
    for (Gang gang : select(one -> one.stage == Gang.Stage.RUNNING && one.partialSinceMs >= 0)) {
      if (gang.partialSinceMs < latest) {
        reporter.ended(gang, Reporter.End.FINISHED, "some containers are over, the others are counted one by one");
        scatter(gang);
        end(gang);
      }
    }
  }

  /** A gang of an earlier ResourceManager, all of whose containers live. `name` is its job id after the attempt's. */
  synchronized boolean takeOver(ApplicationAttemptId id, AppFacts app, String name, Set<ContainerId> live,
      boolean isStartKnown) {
    Gang gang = Gang.takenOver(id, app, name, live, clock.getAsLong());
    if (gang == null) {
      return false;
    }
    Attempt attempt = attempts.computeIfAbsent(id, key -> new Attempt(app));
    live.forEach(container -> containers.put(container, gang));
    attempt.waves = Math.max(attempt.waves, gang.wave);
    attempt.gangs.add(gang);
    if (!isStartKnown) {
      reporter.started(gang);
    }
    return true;
  }

  /** The service has forgotten this gang. Its running containers are reported one by one. */
  synchronized void lost(Gang gang) {
    if (!attempts.containsKey(gang.attempt)) {
      return;
    }
    if (gang.stage == Gang.Stage.GRANTED) {
      askAnew(gang, "the service has forgotten it", false);
    } else if (gang.stage == Gang.Stage.RUNNING) {
      scatter(gang);
      end(gang);
    }
  }

  synchronized Set<ContainerId> containers() {
    return new LinkedHashSet<>(containers.keySet());
  }

  /** The share of a divisible task that a container on this node has; null if it has none. */
  synchronized Share share(ContainerId container, Ask ask, String node) {
    Attempt attempt = attempts.get(ask.attempt);
    return attempt == null ? null : attempt.gangs.stream().map(gang -> gang.share(container, ask, node))
        .filter(Objects::nonNull).findFirst().orElse(null);
  }

  /** Blacklists of attempts that have gangs. */
  synchronized Set<Set<String>> blacklists() {
    return attempts.values().stream().filter(attempt -> !attempt.blacklist.isEmpty() && !attempt.gangs.isEmpty())
        .map(attempt -> attempt.blacklist).collect(Collectors.toSet());
  }

  /** Ids of the jobs that the service should know, with their gangs. */
  synchronized Map<String, Gang> running() {
    return select(gang -> gang.stage == Gang.Stage.RUNNING || gang.stage == Gang.Stage.GRANTED).stream()
        .collect(Collectors.toMap(Gang::id, gang -> gang));
  }

  /** Claims of granted gangs: resources that YARN has still to allocate. */
  synchronized List<Claim> granted() {
    return select(gang -> gang.stage == Gang.Stage.GRANTED).stream()
        .map(gang -> gang.claim(gang.size())).collect(Collectors.toList());
  }

  /** The claim of at most this many of its containers; null once it has none to ask for. */
  synchronized Claim claim(Gang gang, int most) {
    return gang.counts.isEmpty() ? null : gang.claim(most);
  }

  /** The claim of all its containers, or of the fewest it may start with; null once it has none to ask for. */
  synchronized Claim nextClaim(Gang gang, boolean isShort) {
    gang.isShort = isShort && gang.fewest() < gang.size();
    return claim(gang, gang.isShort ? gang.fewest() : gang.size());
  }

  /** For each application with gangs, why it does not run as decided; "" if it does. */
  synchronized Map<AppFacts, String> reasons() {
    Map<AppFacts, String> reasons = new HashMap<>();
    attempts.values().forEach(attempt -> reasons.put(attempt.app, attempt.reason()));
    return reasons;
  }

  synchronized int waiting() {
    return select(Gang::isHeldBack).size();
  }

  private List<Gang> select(Predicate<Gang> wanted) {
    List<Gang> found = new ArrayList<>();
    for (Attempt attempt : attempts.values()) {
      attempt.gangs.stream().filter(wanted).forEach(found::add);
    }
    return found;
  }
}
