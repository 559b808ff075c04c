package placewise.yarn;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceInformation;

/** YARN's terms in the service's JSON. Pure. */
final class Questions {
  static final String GPU = ResourceInformation.GPU_URI;
  /** Label of every node: its YARN partition. */
  static final String PARTITION_LABEL = "yarn.partition";
  static final String DEFAULT_PARTITION = "default";
  private static final JsonNodeFactory NEW = JsonNodeFactory.instance;

  private Questions() {}

  static long gpus(Resource resource) {
    return amount(resource, GPU);
  }

  private static long amount(Resource resource, String name) {
    for (ResourceInformation one : resource.getResources()) {
      if (one.getName().equals(name)) {
        return one.getValue();
      }
    }
    return 0;
  }

  /** Amounts of a task or a node. */
  static ObjectNode resources(Resource resource) {
    ObjectNode amounts = NEW.objectNode();
    amounts.put("cpuCores", resource.getVirtualCores());
    amounts.put("memoryGib", resource.getMemorySize() / 1024.0);
    ObjectNode extended = NEW.objectNode();
    for (ResourceInformation one : resource.getResources()) {
      if (one.getName().equals(GPU)) {
        amounts.put("gpus", one.getValue());
      } else if (!one.getName().equals(ResourceInformation.MEMORY_URI)
          && !one.getName().equals(ResourceInformation.VCORES_URI) && one.getValue() > 0) {
        extended.put(one.getName(), one.getValue());
      }
    }
    if (extended.size() > 0) {
      amounts.set("extended", extended);
    }
    return amounts;
  }

  static String labelOf(String partition) {
    return partition == null || partition.isEmpty() ? DEFAULT_PARTITION : partition;
  }

  /** AdmitOrWait with Place, about these gangs in this order. */
  static ObjectNode admitOrWait(Settings settings, String queue, List<Gang> gangs, String requestId) {
    ObjectNode question = NEW.objectNode();
    question.put("queue", queue).put("policy", settings.admitPolicy).put("dryRun", settings.isDryRun);
    ArrayNode jobs = question.putArray("jobs");
    gangs.forEach(gang -> jobs.add(job(gang, queue).put("priority", settings.priority(gang.app.priority()))));
    ObjectNode place = question.putObject("place");
    place.put("requestId", requestId).put("policy", settings.placePolicy);
    place.put("reserveTtl", settings.reserveTtlMs / 1000 + "s");
    return question;
  }

  static ObjectNode job(Gang gang, String queue) {
    Tags tags = gang.app.tags;
    ObjectNode job = NEW.objectNode();
    job.put("id", gang.id()).put("user", gang.app.user).put("model", tags.model()).put("queue", queue);
    job.put("architecture", gang.size() > 1 ? "ALL_REDUCE" : "SINGLE");
    job.put("submitTime", time(gang.app.submitMs));
    job.put("totalEpochs", tags.number("epochs"));
    job.put("batchSize", (int) Math.min(Integer.MAX_VALUE, tags.number("batch")));
    job.put("datasetSize", Long.toString((long) tags.number("samples")));
    job.put("iterations", tags.number("iterations"));
    job.put("singleGpuSeconds", tags.number("gpu-seconds"));
    boolean isElastic = !gang.isShort && gang.fewest() < gang.size();
    if (isElastic) { // its group is the pattern of one worker
      job.putObject("elastic").put("minGpus", gang.fewest()).put("maxGpus", gang.size());
    }
    ArrayNode groups = job.putArray("groups");
    for (Map.Entry<Ask, Integer> part : gang.counts.entrySet()) {
      int count = isElastic ? 1 : gang.isShort ? gang.fewest() : part.getValue();
      ObjectNode group = groups.addObject().put("role", "WORKER").put("count", count);
      group.set("demand", resources(part.getKey().resource()));
      ObjectNode selector = group.putObject("nodeSelector");
      selector.put(PARTITION_LABEL, labelOf(part.getKey().partition()));
      if (!gang.blacklist.isEmpty()) {
        selector.put(Blacklists.label(gang.blacklist), Blacklists.OTHER);
      }
    }
    return job;
  }

  /** A container that no decision placed, as a job of one task. */
  static ObjectNode single(String id, String user, String queue, Resource resource) {
    ObjectNode job = NEW.objectNode();
    job.put("id", id).put("user", user).put("queue", queue).put("architecture", "SINGLE");
    ObjectNode group = job.putArray("groups").addObject().put("role", "WORKER").put("count", 1);
    group.set("demand", resources(resource));
    return job;
  }

  static ObjectNode event(String jobId, String kind, long timeMs) {
    return NEW.objectNode().put("jobId", jobId).put("kind", kind).put("eventTime", time(timeMs));
  }

  static String time(long milliseconds) {
    return Instant.ofEpochMilli(milliseconds).toString();
  }
}
