package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.Collections;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;

/**
 * A question about a gang that nobody asked for, and its answer. Nothing is sent, logged or counted: it loads the
 * classes that the first real question needs, which in a cold JVM take longer than its budget.
 */
final class Rehearsal {
  private static final String NODE = "nowhere";

  private Rehearsal() {}

  static void run(Placewise placewise, Host host, long nowMs) throws IOException {
    ApplicationAttemptId attempt = ApplicationAttemptId.newInstance(ApplicationId.newInstance(0, 0), 0);
    try {
      ask(attempt, placewise.ask(attempt, key()), placewise.settings, host, nowMs);
    } finally {
      placewise.attemptEnded(attempt, Reporter.End.CANCELLED, "");
    }
  }

  private static void ask(ApplicationAttemptId attempt, Ask ask, Settings settings, Host host, long nowMs)
      throws IOException {
    ask.setManaged(true);
    ask.update(Resource.newInstance(1, 1), "", 1, 0);
    Broker broker = new Broker(settings, new Reporter(null), null, () -> nowMs, () -> { }); // one without metrics
    broker.asksChanged(attempt, AppFacts.ofNobody(), Collections.singleton(ask));
    Gang gang = broker.due().values().iterator().next().get(0);
    broker.sending(Collections.singletonList(gang));
    broker.releaseUnasked("", false);
    broker.withdrawOverdue(host::isUsable);
    broker.reasons();
    host.limit(gang, gang, host.limits("", gang, gang));
    ObjectNode question = Questions.admitOrWait(settings, "", Collections.singletonList(gang), "");
    ServiceClient.JSON.writeValueAsBytes(question);
    JsonNode answer = ServiceClient.JSON.readTree(ServiceClient.JSON.writeValueAsBytes(answer(gang.id())));
    Answer.of(answer.path("admissions"), gang.id());
    JsonNode decision = Answer.of(answer.path("placed").path("decisions"), gang.id());
    Answer.reasons(decision.path("blockers"));
    gang.grant(Answer.placed(gang.counts, gang.fewest(), decision, "", Collections.singleton(NODE)), nowMs);
  }

  private static SchedulerRequestKey key() {
    Resource each = Resource.newInstance(1, 1);
    return SchedulerRequestKey.create(ResourceRequest.newInstance(Priority.newInstance(0), ResourceRequest.ANY, each, 1));
  }

  private static ObjectNode answer(String job) {
    ObjectNode answer = ServiceClient.JSON.createObjectNode();
    answer.putArray("admissions").addObject().put("jobId", job).put("verdict", "ADMIT");
    ObjectNode decision = answer.putObject("placed").putArray("decisions").addObject();
    decision.put("jobId", job).put("outcome", "PLACED").putArray("blockers").addObject().put("message", "none");
    decision.putArray("assignments").addObject().put("task", "worker-0").put("node", NODE).putArray("gpuIndices").add(0);
    return answer;
  }
}
