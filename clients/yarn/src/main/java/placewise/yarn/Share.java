package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * One container's part of a divisible task. It travels as allocation tags, which YARN signs into the container's token:
 * `PLACEWISE_SHARE_SCALE=40.0`.
 */
final class Share {
  /** Prefix of the tags, and of the environment variables that ShareListener makes of them. */
  static final String PREFIX = "PLACEWISE_SHARE_";
  private final double scale;
  private final double fraction;
  private final double seconds;
  private final String unit;

  private Share(double scale, double fraction, double seconds, String unit) {
    this.scale = scale;
    this.fraction = fraction;
    this.seconds = seconds;
    this.unit = unit;
  }

  Set<String> tags() {
    Set<String> tags = new LinkedHashSet<>();
    tags.add(PREFIX + "SCALE=" + scale);
    tags.add(PREFIX + "FRACTION=" + fraction);
    tags.add(PREFIX + "SECONDS=" + seconds);
    tags.add(PREFIX + "UNIT=" + unit);
    return tags;
  }

  /** Partition, about a gang that has its place: over its own GPUs, which serve the job of this id alone. */
  static ObjectNode question(Tags tags, String jobId, Answer.Placed placed) {
    ObjectNode question = JsonNodeFactory.instance.objectNode();
    question.putObject("task").put("id", jobId).put("kind", tags.kind())
        .put("parallelScale", tags.number("divisible")).put("serialScale", tags.number("serial"));
    ArrayNode units = question.putArray("units");
    placed.tasks.forEach(task -> task.units().forEach(units::add));
    return question;
  }

  /** The share of each task, in the order of the tasks: 0 for one whose GPUs have none. Empty if nothing was split. */
  static List<Share> read(JsonNode answer, List<Answer.Task> tasks) {
    List<Share> shares = new ArrayList<>();
    double whole = 0;
    for (JsonNode part : answer.path("shares")) {
      whole += part.path("scale").asDouble();
    }
    if (whole <= 0) {
      return shares;
    }
    for (Answer.Task task : tasks) {
      shares.add(of(task, answer.path("shares"), whole));
    }
    return shares;
  }

  private static Share of(Answer.Task task, JsonNode parts, double whole) {
    double scale = 0;
    double seconds = 0;
    List<String> units = new ArrayList<>();
    for (JsonNode part : parts) {
      String unit = part.path("unit").asText();
      if (task.units().contains(part.path("node").asText() + "/" + unit)) {
        scale += part.path("scale").asDouble();
        seconds = Math.max(seconds, part.path("predictedSeconds").asDouble());
        units.add(unit);
      }
    }
    return new Share(scale, scale / whole, seconds, String.join(",", units));
  }
}
