package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.ArrayList;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Events for the service: at least once, in order. They wait in memory while the service is away. */
final class Reporter {
  private static final Logger LOG = LoggerFactory.getLogger(Reporter.class);
  private static final int MOST_QUEUED = 100_000;
  private static final int PER_REQUEST = 500;

  /** How a gang ended. */
  enum End {
    FINISHED,
    FAILED,
    CANCELLED
  }

  private final PlacewiseMetrics metrics;
  private final Deque<ObjectNode> queue = new ArrayDeque<>();
  private final Set<ContainerId> unchecked = new LinkedHashSet<>();
  private boolean hasDropped;

  Reporter(PlacewiseMetrics metrics) {
    this.metrics = metrics;
  }

  void started(Gang gang) {
    add(decided(Questions.event(gang.id(), "STARTED", System.currentTimeMillis()), gang.decisionId,
        gang.reservationId));
  }

  /** A container that no decision placed runs on this node. `why`: its gang was left to YARN; "" if it had none. */
  void startedAlone(ObjectNode job, String node, ObjectNode demand, String why) {
    ObjectNode event = Questions.event(job.path("id").asText(), "STARTED", System.currentTimeMillis());
    ObjectNode task = event.putArray("placement").addObject().put("task", "worker-0").put("role", "WORKER");
    task.put("node", node).set("demand", demand);
    event.set("job", job);
    add(why.isEmpty() ? event : event.put("reason", shortened("left to the host: " + why)));
  }

  void ended(Gang gang, End end, String why) {
    ObjectNode event = Questions.event(gang.id(), end.name(), System.currentTimeMillis());
    add(decided(event, gang.decisionId, gang.reservationId).put("reason", shortened(why)));
  }

  void cancelled(String jobId, Gang gang, String why) {
    cancelled(jobId, gang.decisionId, gang.reservationId, why);
  }

  /** The job does not hold its GPUs any more. */
  void cancelled(String jobId, String decisionId, String reservationId, String why) {
    ObjectNode event = Questions.event(jobId, "CANCELLED", System.currentTimeMillis());
    add(decided(event, decisionId, reservationId).put("reason", shortened(why)));
  }

  private static ObjectNode decided(ObjectNode event, String decisionId, String reservationId) {
    return event.put("decisionId", decisionId).put("reservationId", reservationId);
  }

  private static String shortened(String text) {
    return text == null ? "" : text.substring(0, Math.min(text.length(), 300));
  }

  synchronized void add(ObjectNode event) {
    if (queue.size() >= MOST_QUEUED) {
      queue.poll();
      hasDropped = true;
      metrics.eventsDropped.incr();
    }
    queue.add(event);
  }

  /** Whether an event was lost since the last call. If so, the books must be compared again. */
  synchronized boolean takeDropped() {
    boolean dropped = hasDropped;
    hasDropped = false;
    return dropped;
  }

  synchronized boolean isEmpty() {
    return queue.isEmpty();
  }

  /** These containers have news; the Asker's thread looks at them. */
  synchronized void recheck(Collection<ContainerId> containers) {
    unchecked.addAll(containers);
  }

  synchronized List<ContainerId> takeUnchecked() {
    List<ContainerId> taken = new ArrayList<>(unchecked);
    unchecked.clear();
    return taken;
  }

  /** Sends all queued events. Throws ServiceException; undelivered events stay queued. */
  void flush(ServiceClient service, long budgetMs) throws ServiceException {
    for (List<ObjectNode> batch = first(PER_REQUEST); !batch.isEmpty(); batch = first(PER_REQUEST)) {
      send(service, batch, budgetMs);
      delivered(batch);
    }
  }

  /** The oldest queued events. */
  synchronized List<ObjectNode> first(int most) {
    List<ObjectNode> batch = new ArrayList<>();
    for (ObjectNode event : queue) {
      if (batch.size() == most) {
        break;
      }
      batch.add(event);
    }
    return batch;
  }

  private synchronized void delivered(List<ObjectNode> batch) {
    for (ObjectNode event : batch) {
      if (queue.peek() == event) {
        queue.poll();
      }
    }
    metrics.events.incr(batch.size());
  }

  private void send(ServiceClient service, List<ObjectNode> batch, long budgetMs) throws ServiceException {
    ObjectNode request = JsonNodeFactory.instance.objectNode();
    ArrayNode events = request.putArray("events");
    batch.forEach(events::add);
    try {
      for (JsonNode problem : service.reportEvents(request, budgetMs).path("problems")) {
        LOG.warn("Placewise: {}", problem.path("message").asText());
      }
    } catch (ServiceException error) {
      if (!error.isRefusal()) {
        throw error;
      }
      if (batch.size() == 1) { // it would be refused for ever, and hold up all that follow
        LOG.warn("Placewise refused an event of job {}: {}", batch.get(0).path("jobId").asText(), error.getMessage());
        metrics.eventsDropped.incr();
        return;
      }
      int middle = batch.size() / 2;
      send(service, batch.subList(0, middle), budgetMs);
      send(service, batch.subList(middle, batch.size()), budgetMs);
    }
  }
}
