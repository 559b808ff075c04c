package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** Reads the service's answer about one gang. An answer that does not name a known node for every task is refused. */
final class Answer {
  private Answer() {}

  /** One container's place. */
  static final class Task {
    final String node;
    private final Set<String> units = new LinkedHashSet<>();

    Task(String node, JsonNode gpus) {
      this.node = node;
      gpus.forEach(index -> units.add(node + "/gpu" + index.asInt()));
    }

    /** Its GPUs, by the names that Partition has for them. */
    Set<String> units() {
      return units;
    }
  }

  /** Nodes for the containers of each ask. */
  static final class Placed {
    final Map<Ask, List<String>> byAsk = new LinkedHashMap<>();
    final String decisionId;
    final String reservationId;
    /** In the gang's order. */
    List<Task> tasks = Collections.emptyList();
    /** The parts of a divisible task, in the order of `tasks`; empty if it is not split. */
    List<Share> shares = Collections.emptyList();

    Placed(String decisionId, String reservationId) {
      this.decisionId = decisionId;
      this.reservationId = reservationId;
    }

    /** Containers. */
    int size() {
      return byAsk.values().stream().mapToInt(List::size).sum();
    }

    /** Nodes without repeats. */
    Collection<String> nodes() {
      Collection<String> nodes = new LinkedHashSet<>();
      byAsk.values().forEach(nodes::addAll);
      return nodes;
    }
  }

  /** The entry of an array whose "jobId" is this; null if there is none. */
  static JsonNode of(JsonNode entries, String jobId) {
    for (JsonNode entry : entries) {
      if (jobId.equals(entry.path("jobId").asText())) {
        return entry;
      }
    }
    return null;
  }

  /**
   * Throws ServiceException if the decision does not fit the gang, which starts with `fewest` containers at least. Tasks
   * are named worker-0 … in the gang's order.
   */
  static Placed placed(Map<Ask, Integer> counts, int fewest, JsonNode decision, String decisionId,
      Collection<String> known) throws ServiceException {
    JsonNode assignments = decision.path("assignments");
    int asked = counts.values().stream().mapToInt(Integer::intValue).sum();
    int size = assignments.size();
    if (!assignments.isArray() || size > asked || size < fewest) {
      throw new ServiceException(0, "a place for " + size + " of " + asked + " containers");
    }
    Task[] tasks = new Task[size];
    for (JsonNode assignment : assignments) {
      int place = place(assignment.path("task").asText());
      String node = assignment.path("node").asText();
      if (place < 0 || place >= size || tasks[place] != null || !known.contains(node)) {
        throw new ServiceException(0, "task " + assignment.path("task") + " on node " + node + " is not usable");
      }
      tasks[place] = new Task(node, assignment.path("gpuIndices"));
    }
    Placed placed = new Placed(decisionId, decision.path("reservationId").asText());
    placed.tasks = Arrays.asList(tasks);
    int next = 0;
    for (Map.Entry<Ask, Integer> part : counts.entrySet()) {
      List<String> of = new ArrayList<>();
      for (int i = 0; i < part.getValue() && next < size; i++) {
        of.add(tasks[next++].node);
      }
      placed.byAsk.put(part.getKey(), of);
    }
    return placed;
  }

  private static int place(String task) {
    int dash = task.lastIndexOf('-');
    try {
      return Integer.parseInt(task.substring(dash + 1));
    } catch (NumberFormatException error) {
      return -1;
    }
  }

  /** Whether a gang waits because not even an empty cluster could take it. */
  static boolean isUnshapeable(JsonNode blockers) {
    return blockers.findValuesAsText("reason").contains("NO_FEASIBLE_SHAPE");
  }

  /** One line for a person: the first reasons of a wait. */
  static String reasons(JsonNode blockers) {
    StringBuilder text = new StringBuilder();
    for (JsonNode blocker : blockers) {
      String message = blocker.path("message").asText();
      text.append(text.length() == 0 ? "" : "; ")
          .append(message.isEmpty() ? blocker.path("reason").asText() : message);
    }
    return text.length() == 0 ? "waiting for its turn" : text.toString();
  }
}
