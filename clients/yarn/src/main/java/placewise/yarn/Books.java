package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.MissingNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainer;
import org.apache.hadoop.yarn.server.resourcemanager.rmcontainer.RMContainerState;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerApplicationAttempt;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Keeps the service's account of the cluster equal to YARN's: a container belongs to a decided gang, or is reported as a
 * job of its own (ApplicationMasters, containers without GPUs or with strict hosts, gangs left to YARN).
 */
final class Books {
  private static final Logger LOG = LoggerFactory.getLogger(Books.class);
  // A container shows up before the scheduler has committed it, and may never be.
  private static final long UNCOMMITTED_MS = 5_000;
  private static final String GANG = "appattempt_";
  private static final String SINGLE = "container_";
  private final RMContext context;
  private final Placewise placewise;
  private final Set<ContainerId> singles = new HashSet<>();
  private final Map<ContainerId, Long> unsettled = new HashMap<>();

  Books(RMContext context, Placewise placewise) {
    this.context = context;
    this.placewise = placewise;
  }

  private AbstractYarnScheduler<?, ?> scheduler() {
    return (AbstractYarnScheduler<?, ?>) context.getScheduler();
  }

  /** Looks at every container that has news. */
  void check() {
    long now = System.nanoTime() / 1_000_000;
    for (ContainerId id : placewise.reporter.takeUnchecked()) {
      unsettled.putIfAbsent(id, now);
    }
    unsettled.entrySet().removeIf(entry -> isSettled(entry.getKey(), now - entry.getValue()));
  }

  private boolean isSettled(ContainerId id, long ageMs) {
    RMContainer container = scheduler().getRMContainer(id);
    if (container == null || container.completed()) {
      if (singles.remove(id)) {
        placewise.reporter.add(Questions.event(id.toString(), "FINISHED", System.currentTimeMillis()));
        placewise.broker.changed();
        return true;
      }
      return placewise.broker.containerEnded(id) || container != null || ageMs > UNCOMMITTED_MS;
    }
    RMContainerState state = container.getState();
    if (state == RMContainerState.NEW || state == RMContainerState.RESERVED) {
      return false;
    }
    started(id, container);
    return true;
  }

  private void started(ContainerId id, RMContainer container) {
    if (singles.contains(id)) {
      return;
    }
    String node = Host.name(scheduler(), container.getAllocatedNode());
    Ask ask = placewise.findAsk(container.getApplicationAttemptId(), container.getAllocatedSchedulerKey());
    if (placewise.broker.containerStarted(id, node, ask)) {
      return;
    }
    singles.add(id);
    SchedulerApplicationAttempt attempt = scheduler().getApplicationAttempt(container.getApplicationAttemptId());
    ObjectNode job = Questions.single(id.toString(), text(attempt == null ? null : attempt.getUser()),
        text(container.getQueueName()), container.getAllocatedResource());
    String why = ask == null ? "" : ask.openedFor();
    placewise.reporter.startedAlone(job, node, Questions.resources(container.getAllocatedResource()), why);
  }

  private static String text(String given) {
    return given == null ? "" : given;
  }

  /** Every container of the scheduler counts as news, and so does every one that it does not have any more. */
  void recheckAll() {
    List<ContainerId> all = new ArrayList<>(singles);
    all.addAll(placewise.broker.containers());
    for (SchedulerNode node : scheduler().getNodes(null)) {
      node.getCopiedListOfRunningContainers().forEach(container -> all.add(container.getContainerId()));
    }
    placewise.reporter.recheck(all);
  }

  /**
   * Compares the service's jobs with YARN's containers: after a start, after the service was away, after lost events.
   * Gangs of an earlier ResourceManager whose containers all live are taken over, all other strange jobs are ended.
   */
  void compare(ServiceClient service, long budgetMs) throws ServiceException {
    JsonNode jobs = jobs(service, budgetMs);
    Map<String, Gang> gangs = placewise.broker.running();
    Set<String> seen = new HashSet<>();
    Map<ApplicationAttemptId, List<RMContainer>> free = new HashMap<>();
    for (JsonNode job : jobs) {
      String id = job.path("jobId").asText();
      seen.add(id);
      if (!gangs.containsKey(id) && !isRunning(id, job, free)) {
        placewise.reporter.cancelled(id, "", job.path("reservationId").asText(), "YARN does not run it");
      }
    }
    singles.removeIf(id -> !seen.contains(id.toString()));
    gangs.forEach((id, gang) -> {
      if (!seen.contains(id)) {
        placewise.broker.lost(gang);
      }
    });
    recheckAll();
  }

  private JsonNode jobs(ServiceClient service, long budgetMs) throws ServiceException {
    try {
      return service.cluster(budgetMs).path("jobs");
    } catch (ServiceException error) {
      if (error.status == 404) {
        return MissingNode.getInstance();
      }
      throw error;
    }
  }

  /** Whether YARN runs the job, which is taken over if it is new to us. Nothing of YARN's has a name that cannot be read. */
  private boolean isRunning(String id, JsonNode job, Map<ApplicationAttemptId, List<RMContainer>> free) {
    try {
      return id.startsWith(SINGLE) ? isSingleRunning(ContainerId.fromString(id)) : isTakenOver(id, job, free);
    } catch (IllegalArgumentException unreadable) {
      return false;
    }
  }

  private boolean isSingleRunning(ContainerId id) {
    if (singles.contains(id)) {
      return true;
    }
    RMContainer live = scheduler().getRMContainer(id);
    return live != null && !live.completed() && singles.add(id);
  }

  private boolean isTakenOver(String id, JsonNode job, Map<ApplicationAttemptId, List<RMContainer>> free) {
    int slash = id.indexOf('/');
    if (!id.startsWith(GANG) || slash < 0) {
      return false;
    }
    ApplicationAttemptId attempt = ApplicationAttemptId.fromString(id.substring(0, slash));
    List<RMContainer> candidates = free.computeIfAbsent(attempt, this::live);
    List<RMContainer> found = new ArrayList<>();
    for (JsonNode task : job.path("assignments")) {
      RMContainer match = match(task, candidates);
      if (match == null) {
        candidates.addAll(found);
        return false;
      }
      candidates.remove(match);
      found.add(match);
    }
    LOG.info("Placewise: gang {} of an earlier ResourceManager still runs", id);
    Set<ContainerId> ids = new HashSet<>();
    found.forEach(container -> ids.add(container.getContainerId()));
    return !ids.isEmpty()
        && placewise.broker.takeOver(attempt, placewise.facts(attempt), id.substring(slash + 1), ids,
            "RUNNING".equals(job.path("state").asText()));
  }

  private List<RMContainer> live(ApplicationAttemptId attempt) {
    List<RMContainer> live = new ArrayList<>();
    if (scheduler().getApplicationAttempt(attempt) == null) {
      return live;
    }
    for (RMContainer container : scheduler().getApplicationAttempt(attempt).getLiveContainers()) {
      if (!container.isAMContainer() && !singles.contains(container.getContainerId())) {
        live.add(container);
      }
    }
    return live;
  }

  private RMContainer match(JsonNode task, List<RMContainer> candidates) {
    for (RMContainer container : candidates) {
      boolean isThere = Host.name(scheduler(), container.getAllocatedNode()).equals(task.path("node").asText());
      double gpus = task.path("demand").path("gpus").asDouble();
      if (isThere && Questions.gpus(container.getAllocatedResource()) == gpus) {
        return container;
      }
    }
    return null;
  }
}
