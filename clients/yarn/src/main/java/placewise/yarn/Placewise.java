package placewise.yarn;

import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The adapter's parts of one active ResourceManager. YARN makes its extension points by name: they meet here. */
final class Placewise {
  private static final Logger LOG = LoggerFactory.getLogger(Placewise.class);
  private static volatile Placewise current;
  final Settings settings;
  final Reporter reporter;
  final Broker broker;
  final PlacewiseMetrics metrics;
  private final Asker asker;
  private final Host host;
  private final ServiceClient service;
  private final RMContext context;
  private final Map<ApplicationAttemptId, AppFacts> facts = new ConcurrentHashMap<>();
  private final Map<ApplicationAttemptId, Map<SchedulerRequestKey, Ask>> asks = new ConcurrentHashMap<>();
  private final Map<ApplicationAttemptId, OpenAsks> openAsks = new ConcurrentHashMap<>();

  private Placewise(RMContext context, Configuration configuration) {
    this.context = context;
    settings = new Settings(configuration);
    metrics = PlacewiseMetrics.registered();
    reporter = new Reporter(metrics);
    service = new ServiceClient(settings);
    broker = new Broker(settings, reporter, metrics, Placewise::milliseconds, this::wake);
    host = new Host(context, this);
    asker = new Asker(settings, service, broker, host, reporter, metrics, Placewise::milliseconds);
  }

  /** The parts in force; null before the first start. */
  static Placewise current() {
    return current;
  }

  /** Replaces the parts of an earlier time as the active ResourceManager. */
  static synchronized Placewise start(RMContext context, Configuration configuration) {
    if (current != null) {
      current.stop();
    }
    current = new Placewise(context, configuration);
    current.asker.start();
    LOG.info("Placewise: asks {} about queues {} and tagged applications, cluster {}{}", current.settings.url,
        current.settings.queues, current.settings.cluster, current.settings.isDryRun ? ", dry run" : "");
    if (!current.settings.unknown().isEmpty()) {
      LOG.warn("Placewise: no such setting: {}", current.settings.unknown());
    }
    LOG.info("Placewise: not decided: FairScheduler, placement constraints, GPU indices, opportunistic containers;"
        + " Kerberos and federation have not been run");
    return current;
  }

  private void stop() {
    asker.close();
    service.close();
  }

  private static long milliseconds() {
    return System.nanoTime() / 1_000_000;
  }

  void wake() {
    if (asker != null) {
      asker.wake();
    }
  }

  Ask ask(ApplicationAttemptId attempt, SchedulerRequestKey key) {
    return asks.computeIfAbsent(attempt, id -> new ConcurrentHashMap<>())
        .computeIfAbsent(key, name -> new Ask(attempt, name, settings.isDryRun,
            openAsks.computeIfAbsent(attempt, id -> new OpenAsks())));
  }

  /** The attempt has asks that the gate never sees. */
  void keepOpen(ApplicationAttemptId attempt) {
    openAsks.computeIfAbsent(attempt, id -> new OpenAsks()).keepOpen();
  }

  /** Null if the attempt has had no ask. */
  OpenAsks openAsks(ApplicationAttemptId attempt) {
    return openAsks.get(attempt);
  }

  /** The ask under this key, or null if the attempt has none. */
  Ask findAsk(ApplicationAttemptId attempt, SchedulerRequestKey key) {
    Map<SchedulerRequestKey, Ask> known = asks.get(attempt);
    return known == null || key == null ? null : known.get(key);
  }

  /** Null if YARN does not know the application any more. */
  AppFacts facts(ApplicationAttemptId attempt) {
    return facts.computeIfAbsent(attempt, id -> {
      RMApp app = context.getRMApps().get(id.getApplicationId());
      return app == null ? null : new AppFacts(app);
    });
  }

  boolean isManaged(AppFacts app) {
    if (app == null || app.tags.isOptOut()) {
      return false;
    }
    return app.tags.isOptIn() || Queues.names(settings.queues, app.queue());
  }

  /** Counts the attempts that the gate never sees. Their containers are reported as used, like those of every other. */
  void registered(ApplicationAttemptId attempt) {
    AppFacts app = facts(attempt);
    if (isManaged(app) && !app.allocator.isEmpty() && !app.allocator.equals(PlacewiseAllocator.class.getName())) {
      metrics.passedBy.incr();
      LOG.warn("Placewise: {} is not decided: it names its own placement allocator, {}", attempt, app.allocator);
    }
  }

  void asksChanged(ApplicationAttemptId attempt, Collection<Ask> changed) {
    AppFacts app = facts(attempt);
    if (app != null) {
      broker.asksChanged(attempt, app, changed);
    }
  }

  /** Reports to the Broker the hosts and racks that the attempt refuses now. */
  void blacklistChanged(ApplicationAttemptId attempt) {
    SchedulerApplicationAttempt known =
        ((AbstractYarnScheduler<?, ?>) context.getScheduler()).getApplicationAttempt(attempt);
    AppFacts app = facts(attempt);
    if (known != null && app != null) {
      broker.blacklistChanged(attempt, app, new HashSet<>(known.getBlacklistedNodes()));
    }
  }

  /** Puts the shares of a divisible task into the tokens of the containers that the application is handed. */
  void share(ApplicationAttemptId attempt, List<Container> containers) {
    for (Container container : containers) {
      Ask ask = findAsk(attempt, SchedulerRequestKey.extractFrom(container));
      Share share = ask == null ? null : broker.share(container.getId(), ask, host.name(container.getNodeId()));
      if (share != null) {
        TaggedTokens.tag(container, share.tags(), context.getContainerTokenSecretManager());
      }
    }
  }

  void attemptEnded(ApplicationAttemptId attempt, Reporter.End end, String why) {
    broker.attemptEnded(attempt, end, why);
    facts.remove(attempt);
    asks.remove(attempt);
    openAsks.remove(attempt);
  }
}
