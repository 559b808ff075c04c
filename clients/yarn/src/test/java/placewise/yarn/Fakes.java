package placewise.yarn;

import java.lang.reflect.Proxy;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.ha.HAServiceProtocol.HAServiceState;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.event.Dispatcher;
import org.apache.hadoop.yarn.event.Event;
import org.apache.hadoop.yarn.event.EventHandler;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;

/** Parts of a ResourceManager that answer a few methods by name, and null to every other. */
final class Fakes {
  private Fakes() {}

  static ApplicationAttemptId attempt(int number) {
    return ApplicationAttemptId.newInstance(ApplicationId.newInstance(1, number), 1);
  }

  static RMApp app(Map<String, String> schedulingProperties) {
    return app(schedulingProperties, 0);
  }

  static RMApp app(Map<String, String> schedulingProperties, int priority) {
    Map<String, Object> answers = new HashMap<>();
    answers.put("getApplicationPriority", Priority.newInstance(priority));
    answers.put("getUser", "ann");
    answers.put("getQueue", "root.gpu");
    answers.put("getSubmitTime", 1_000L);
    answers.put("getApplicationTags", Collections.emptySet());
    answers.put("getApplicationSchedulingEnvs", schedulingProperties);
    return answering(RMApp.class, answers);
  }

  /** `state` gives the HAServiceState: null for a ResourceManager that is not active. */
  static RMContext context(Configuration configuration, Map<ApplicationId, RMApp> apps, Supplier<Object> state) {
    Map<String, Object> answers = new HashMap<>();
    answers.put("getYarnConfiguration", configuration);
    answers.put("getRMApps", new ConcurrentHashMap<>(apps));
    answers.put("getHAServiceState", state);
    answers.put("getScheduler", new CapacityScheduler());
    return answering(RMContext.class, answers);
  }

  /** An active ResourceManager with these nodes, whose scheduler has no queues and no limits. */
  static RMContext activeContext(Configuration configuration, String... nodes) {
    return activeContext(configuration, new FifoScheduler(), event -> {}, nodes);
  }

  /** An active ResourceManager with these nodes. `handler` gets the events for the scheduler. */
  static RMContext activeContext(Configuration configuration, ResourceScheduler scheduler, EventHandler<Event<?>> handler,
      String... nodes) {
    ConcurrentHashMap<NodeId, RMNode> known = new ConcurrentHashMap<>();
    for (String name : nodes) {
      known.put(NodeId.newInstance(name, 1), node(name));
    }
    Map<String, Object> answers = new HashMap<>();
    answers.put("getYarnConfiguration", configuration);
    answers.put("getHAServiceState", HAServiceState.ACTIVE);
    answers.put("isSchedulerReadyForAllocatingContainers", true);
    answers.put("getRMNodes", known);
    answers.put("getScheduler", scheduler);
    answers.put("getDispatcher", answering(Dispatcher.class, Collections.singletonMap("getEventHandler", handler)));
    return answering(RMContext.class, answers);
  }

  static RMNode node(String name) {
    Map<String, Object> answers = new HashMap<>();
    answers.put("getNodeID", NodeId.newInstance(name, 1));
    answers.put("getHostName", name);
    answers.put("getRackName", "/default-rack");
    answers.put("getState", NodeState.RUNNING);
    answers.put("getTotalCapability", Resource.newInstance(1_024, 8));
    return answering(RMNode.class, answers);
  }

  static Configuration configuration(String url) {
    Configuration configuration = new Configuration(false);
    configuration.set("placewise.url", url);
    configuration.set("placewise.queues", "root.gpu");
    return configuration;
  }

  /** An ask for `count` containers that the service decides. */
  static Ask ask(ApplicationAttemptId attempt, int count, boolean isDryRun) {
    Ask ask = new Ask(attempt, SchedulerRequestKey.create(
        ResourceRequest.newInstance(Priority.newInstance(1), ResourceRequest.ANY, Resource.newInstance(64, 1), count)),
        isDryRun);
    ask.setManaged(true);
    ask.update(Resource.newInstance(64, 1), "", count, 0);
    return ask;
  }

  static <T> T answering(Class<T> type, Map<String, Object> answers) {
    return type.cast(Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type},
        (proxy, method, arguments) -> {
          Object answer = answers.get(method.getName());
          return answer instanceof Supplier ? ((Supplier<?>) answer).get() : answer;
        }));
  }
}
