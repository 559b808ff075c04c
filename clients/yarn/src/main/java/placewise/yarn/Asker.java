package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.function.LongSupplier;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The thread that talks to the service: news first, then questions. A second thread releases gangs while the first one
 * is held up. Both end with `close`.
 */
final class Asker implements AutoCloseable {
  private static final Logger LOG = LoggerFactory.getLogger(Asker.class);
  private static final long REPORT_BUDGET_MS = 2_000;
  /** The service takes 10,000 nodes in two to six seconds. */
  private static final long REPORT_BUDGET_MS_PER_NODE = 2;
  private static final long IDLE_MS = 100;
  private static final long CLOCK_MS = 20;
  private static final long PARTIAL_MS = 2_000;
  private static final long STOP_MS = 5_000;
  private static final int WARM_UPS = 4;
  private final Settings settings;
  private final ServiceClient service;
  private final Broker broker;
  private final Host host;
  private final Reporter reporter;
  private final PlacewiseMetrics metrics;
  private final LongSupplier clock;
  private final Breaker breaker;
  private final String nonce = UUID.randomUUID().toString().substring(0, 12);
  private final AtomicLong questions = new AtomicLong();
  private final ReentrantLock lock = new ReentrantLock();
  private final Condition news = lock.newCondition();
  private final List<Thread> threads = new ArrayList<>();
  private boolean hasNews;
  private volatile boolean isStopping;
  private volatile long passSinceMs = Long.MAX_VALUE;
  private boolean areBooksDue = true;
  private boolean hasFailed;
  private long checkedMs = Long.MIN_VALUE / 2;

  Asker(Settings settings, ServiceClient service, Broker broker, Host host, Reporter reporter,
      PlacewiseMetrics metrics, LongSupplier clock) {
    this.settings = settings;
    this.service = service;
    this.broker = broker;
    this.host = host;
    this.reporter = reporter;
    this.metrics = metrics;
    this.clock = clock;
    breaker = new Breaker(clock);
  }

  void start() {
    threads.add(new Thread(this::run, "placewise-asker"));
    threads.add(new Thread(this::watch, "placewise-clock"));
    for (Thread thread : threads) {
      thread.setDaemon(true);
      thread.start();
    }
  }

  void wake() {
    lock.lock();
    try {
      hasNews = true;
      news.signal();
    } finally {
      lock.unlock();
    }
  }

  /** Both threads are over when it returns, unless one hangs for longer than STOP_MS. */
  @Override
  public void close() {
    isStopping = true;
    threads.forEach(Thread::interrupt);
    try {
      for (Thread thread : threads) {
        thread.join(STOP_MS);
        if (thread.isAlive()) {
          LOG.error("Placewise: thread {} of an earlier start does not end", thread.getName());
        }
      }
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  private void run() {
    warmUp();
    while (!isStopping) {
      try {
        passSinceMs = clock.getAsLong();
        step();
        passSinceMs = Long.MAX_VALUE;
        host.show(broker.reasons());
        await();
      } catch (InterruptedException error) {
        return;
      } catch (RuntimeException error) { // the next pass may do better, and gangs must go on
        LOG.error("Placewise: a pass failed", error);
      }
    }
  }

  private void await() throws InterruptedException {
    lock.lock();
    try {
      if (!hasNews) {
        news.await(IDLE_MS, TimeUnit.MILLISECONDS);
      }
      hasNews = false;
    } finally {
      lock.unlock();
    }
  }

  /** Loads the classes of a question: in a cold JVM the first one takes longer than its budget. */
  private void warmUp() {
    try {
      Rehearsal.run(Placewise.current(), host, clock.getAsLong());
    } catch (IOException | RuntimeException | LinkageError error) { // the first question may be late then
      LOG.warn("Placewise: the rehearsal failed", error);
    }
    for (int i = 0; i < WARM_UPS && !isStopping; i++) {
      try {
        service.cluster(REPORT_BUDGET_MS);
      } catch (ServiceException error) {
        if (error.status == 0) {
          LOG.info("Placewise: {} does not answer yet: {}", settings.url, error.getMessage());
          return;
        }
      }
    }
  }

  /** Whether the service is failing and the current pass has waited longer than a question's budget for it. */
  private boolean isTryingInVain() {
    return breaker.isFailing() && passSinceMs <= clock.getAsLong() - settings.decideBudgetMs;
  }

  private void watch() {
    while (!isStopping) {
      try {
        Thread.sleep(CLOCK_MS);
        if (host.isReady()) {
          broker.releaseUnasked("the service did not answer in time", isTryingInVain());
        } else {
          broker.idle();
        }
      } catch (InterruptedException error) {
        return;
      } catch (RuntimeException error) {
        LOG.error("Placewise: the clock's pass failed", error);
      }
    }
  }

  private void step() {
    if (!host.isReady()) {
      return;
    }
    broker.splitPartial(PARTIAL_MS);
    broker.withdrawOverdue(host::isUsable);
    host.lookAtQueues();
    if (!settings.isDryRun) {
      broker.releaseRefused(host::refusal);
    }
    host.checkContainers(); // after these calls: it reports the containers of gangs that they end
    metrics.waiting.set(broker.waiting());
    Map<String, List<Gang>> due = broker.due();
    if (breaker.isOpen()) {
      due.values().forEach(gangs -> broker.failed(gangs, breaker.reason()));
      return;
    }
    if (!report(due.isEmpty())) {
      due.values().forEach(gangs -> broker.failed(gangs, breaker.reason()));
      return;
    }
    due.forEach(this::ask);
  }

  private long reportBudgetMs() {
    return REPORT_BUDGET_MS + REPORT_BUDGET_MS_PER_NODE * host.size();
  }

  /** Inventory, books and events, before the questions that depend on them. False if the service did not take them. */
  private boolean report(boolean isIdle) {
    try {
      if (hasFailed) { // the service may have lost its state
        hasFailed = false;
        areBooksDue = true;
        host.forgetNodes();
      }
      if (reporter.takeDropped()) {
        areBooksDue = true;
      }
      host.reportNodes(service, reportBudgetMs());
      reporter.flush(service, REPORT_BUDGET_MS);
      if (areBooksDue) { // a job that was not reported yet would count as lost
        host.compareBooks(service, reportBudgetMs());
        areBooksDue = false;
        reporter.flush(service, REPORT_BUDGET_MS);
      } else if (isIdle && clock.getAsLong() - checkedMs >= settings.resyncMs) {
        checkedMs = clock.getAsLong();
        host.recheckAll();
      }
      if (isIdle) { // otherwise the questions show whether the service answers
        succeeded();
      }
      return true;
    } catch (ServiceException error) {
      failed(error);
      return false;
    }
  }

  private void succeeded() {
    if (breaker.succeed()) {
      LOG.info("Placewise: the service answers again");
    }
  }

  private void failed(ServiceException error) {
    hasFailed = true;
    int failures = breaker.fail(error.getMessage());
    if (failures == 1) {
      LOG.warn("Placewise: no answer from {}: {}", settings.url, error.getMessage());
    } else if (failures > 1) {
      LOG.warn("Placewise: still no answer from {} in {} calls: {}", settings.url, failures, error.getMessage());
    }
  }

  private void ask(String queueAndLabel, List<Gang> gangs) {
    ask(queueAndLabel, gangs, gangs.get(0));
  }

  /** `head`: the first gang of the queue, which these are, or some behind it. */
  private void ask(String queueAndLabel, List<Gang> gangs, Gang head) {
    int depth = Math.min(gangs.size(), settings.depth);
    List<Gang> allowed = new ArrayList<>();
    Limits limits = host.limits(queueAndLabel.substring(queueAndLabel.indexOf('\u0000') + 1), gangs.get(0), head);
    for (Gang gang : gangs.subList(0, depth)) {
      String limit = host.limit(gang, head, limits);
      if (limit.isEmpty()) {
        allowed.add(gang);
      } else {
        broker.waits(gang, gang.id(), limit, "");
      }
    }
    // A service that fails is looked at with the short budget of one batch.
    int most = breaker.isFailing() ? settings.batch : depth;
    List<Gang> sent = broker.sending(allowed.subList(0, Math.min(most, allowed.size())));
    Set<Gang> behind = new LinkedHashSet<>(allowed); // their turn comes with a later question
    behind.addAll(gangs.subList(depth, gangs.size()));
    sent.forEach(behind::remove);
    if (sent.isEmpty()) {
      waitBehind(behind);
      return;
    }
    if (breaker.isOpen()) {
      broker.failed(sent, breaker.reason());
      return;
    }
    try {
      put(queueAndLabel.substring(0, queueAndLabel.indexOf('\u0000')), sent, head);
    } catch (ServiceException error) {
      if (!error.isRefusal()) {
        failed(error);
        broker.failed(sent, error.getMessage());
        return;
      }
      askByHalves(queueAndLabel, sent, head, error.getMessage());
    }
    waitBehind(behind);
  }

  /** The service cannot read one of these: smaller questions find it. */
  private void askByHalves(String queueAndLabel, List<Gang> gangs, Gang head, String why) {
    int middle = gangs.size() / 2;
    if (middle == 0) {
      broker.impossible(gangs.get(0), gangs.get(0).id(), why, settings.isNoFitReleased);
      return;
    }
    ask(queueAndLabel, gangs.subList(0, middle), head);
    ask(queueAndLabel, gangs.subList(middle, gangs.size()), head);
  }

  private void waitBehind(Iterable<Gang> gangs) {
    gangs.forEach(gang -> broker.waits(gang, gang.id(), "behind gangs that wait", ""));
  }

  private void put(String queue, List<Gang> gangs, Gang head) throws ServiceException {
    Map<Gang, String> ids = new LinkedHashMap<>();
    Map<Gang, Map<Ask, Integer>> counts = new HashMap<>();
    JsonNode question;
    synchronized (broker) { // the asks of a gang may shrink meanwhile
      gangs.forEach(gang -> {
        ids.put(gang, gang.id());
        counts.put(gang, new LinkedHashMap<>(gang.counts));
      });
      question = Questions.admitOrWait(settings, queue, gangs, nonce + "-" + questions.incrementAndGet());
    }
    long began = clock.getAsLong();
    JsonNode answer = service.admitOrWait(question, settings.budgetMs(gangs.size()));
    metrics.asked.incr();
    metrics.decideMs.add(clock.getAsLong() - began);
    if (!answer.path("admissions").isArray()) {
      throw new ServiceException(0, "the answer has no admissions");
    }
    ServiceException unusable = null;
    List<Answer.Placed> granted = new ArrayList<>();
    for (Gang gang : gangs) {
      try {
        read(gang, ids.get(gang), counts.get(gang), answer, head, granted);
      } catch (ServiceException error) {
        unusable = error;
      }
    }
    host.nudge(granted);
    if (unusable != null) {
      throw unusable;
    }
    succeeded();
  }

  private void read(Gang gang, String id, Map<Ask, Integer> counts, JsonNode answer, Gang head,
      List<Answer.Placed> granted) throws ServiceException {
    JsonNode admission = Answer.of(answer.path("admissions"), id);
    String decisionId = answer.path("meta").path("decisionId").asText();
    if (admission == null) {
      throw new ServiceException(0, "the answer does not name gang " + id);
    }
    if (!"ADMIT".equals(admission.path("verdict").asText())) {
      JsonNode blockers = admission.path("blockers");
      if (!Answer.isUnshapeable(blockers)) {
        broker.waits(gang, id, Answer.reasons(blockers), decisionId);
      } else if (settings.isUnshapeableReleased) {
        broker.impossible(gang, id, Answer.reasons(blockers), true);
      } else {
        broker.waitsInVain(gang, id, Answer.reasons(blockers), decisionId);
      }
      return;
    }
    JsonNode placed = answer.path("placed");
    JsonNode decision = Answer.of(placed.path("decisions"), id);
    if (decision == null) {
      throw new ServiceException(0, "gang " + id + " is admitted without a place");
    }
    String placeId = placed.path("meta").path("decisionId").asText(decisionId);
    switch (decision.path("outcome").asText()) {
      case "PLACED":
        Answer.Placed where = Answer.placed(counts, Gang.fewest(gang.app.tags, counts), decision, placeId,
            host.nodeNames());
        String limit = host.limitNow(gang, head, where.size());
        if (!limit.isEmpty()) { // earlier gangs of the same answer may have used up the queue
          broker.givesBack(gang, id, where, limit);
          break;
        }
        split(gang, id, where);
        if (broker.granted(gang, id, where)) {
          granted.add(where);
        }
        break;
      case "NO_FIT":
        broker.impossible(gang, id, Answer.reasons(decision.path("blockers")), settings.isNoFitReleased);
        break;
      default:
        broker.waits(gang, id, Answer.reasons(decision.path("blockers")), placeId);
    }
  }

  /** Asks how a divisible task is split over its containers. Without an answer they run without shares. */
  private void split(Gang gang, String id, Answer.Placed placed) {
    if (settings.isDryRun || !gang.app.tags.isDivisible()) {
      return;
    }
    try {
      JsonNode answer = service.partition(Share.question(gang.app.tags, id, placed), settings.decideBudgetMs);
      placed.shares = Share.read(answer, placed.tasks);
      LOG.info("Placewise: gang {} is split into {} shares, decision {}", id, answer.path("shares").size(),
          answer.path("meta").path("decisionId").asText());
    } catch (ServiceException error) {
      LOG.warn("Placewise: gang {} gets no shares: {}", id, error.getMessage());
    }
  }
}
