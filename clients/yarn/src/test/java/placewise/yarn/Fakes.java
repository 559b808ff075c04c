package placewise.yarn;

import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.ha.HAServiceProtocol.HAServiceState;
import org.apache.hadoop.yarn.LocalConfigurationProvider;
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
import org.apache.hadoop.yarn.server.resourcemanager.RMContextImpl;
import org.apache.hadoop.yarn.server.resourcemanager.nodelabels.RMNodeLabelsManager;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceLimits;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.ResourceScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacitySchedulerConfiguration;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.fica.FiCaSchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.apache.hadoop.yarn.util.resource.DominantResourceCalculator;

/** Parts of a ResourceManager that answer a few methods by name, and null to every other. */
final class Fakes {
  private static final Resource SIZE = Resource.newInstance(1_024, 8);

  private Fakes() {}

  static ApplicationAttemptId attempt(int number) {
    return ApplicationAttemptId.newInstance(ApplicationId.newInstance(1, number), 1);
  }

  static RMApp app(Map<String, String> schedulingProperties) {
    return app(schedulingProperties, 0);
  }

  static RMApp app(Map<String, String> schedulingProperties, int priority) {
    return app("YARN", schedulingProperties, priority);
  }

  static RMApp app(String type, Map<String, String> schedulingProperties, int priority) {
    Map<String, Object> answers = new HashMap<>();
    answers.put("getApplicationType", type);
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
    return activeContext(configuration, scheduler, handler,
        Arrays.stream(nodes).map(Fakes::node).toArray(RMNode[]::new));
  }

  static RMContext activeContext(Configuration configuration, ResourceScheduler scheduler, EventHandler<Event<?>> handler,
      RMNode... nodes) {
    ConcurrentHashMap<NodeId, RMNode> known = new ConcurrentHashMap<>();
    for (RMNode node : nodes) {
      known.put(node.getNodeID(), node);
    }
    Map<String, Object> answers = new HashMap<>();
    answers.put("getYarnConfiguration", configuration);
    answers.put("getHAServiceState", HAServiceState.ACTIVE);
    answers.put("isSchedulerReadyForAllocatingContainers", true);
    answers.put("getRMNodes", known);
    answers.put("getScheduler", scheduler);
    if (scheduler instanceof CapacityScheduler) {
      answers.put("getNodeLabelManager", ((CapacityScheduler) scheduler).getRMContext().getNodeLabelManager());
    }
    answers.put("getDispatcher", answering(Dispatcher.class, Collections.singletonMap("getEventHandler", handler)));
    return answering(RMContext.class, answers);
  }

  static CapacityScheduler scheduler(CapacitySchedulerConfiguration configuration) throws Exception {
    return scheduler(configuration, name -> { });
  }

  /** YARN's own, whose cluster is one node as large as those of `node`. `looks` gets the node of each look. */
  static CapacityScheduler scheduler(CapacitySchedulerConfiguration configuration, Consumer<NodeId> looks)
      throws Exception {
    configuration.set("yarn.scheduler.capacity.resource-calculator", DominantResourceCalculator.class.getName());
    RMContextImpl context = new RMContextImpl();
    context.setConfigurationProvider(new LocalConfigurationProvider());
    RMNodeLabelsManager labels = new RMNodeLabelsManager();
    labels.init(configuration);
    labels.activateNode(NodeId.newInstance("n1", 1), SIZE);
    context.setNodeLabelManager(labels);
    CapacityScheduler scheduler = new CapacityScheduler() {
      @Override
      public Resource getClusterResource() { // that of the nodes that have registered
        return SIZE;
      }

      @Override
      public FiCaSchedulerNode getNode(NodeId id) { // each look begins with it
        looks.accept(id);
        return new FiCaSchedulerNode(node(id.getHost()), false);
      }
    };
    scheduler.setConf(configuration);
    scheduler.setRMContext(context);
    scheduler.init(configuration);
    scheduler.getRootQueue().updateClusterResource(SIZE, new ResourceLimits(SIZE));
    return scheduler;
  }

  static RMNode node(String name) {
    return node(name, NodeState.RUNNING);
  }

  static RMNode node(String name, NodeState state) {
    return node(name, () -> state);
  }

  static RMNode node(String name, Supplier<NodeState> state) {
    Map<String, Object> answers = new HashMap<>();
    answers.put("getNodeID", NodeId.newInstance(name, 1));
    answers.put("getHostName", name);
    answers.put("getRackName", "/default-rack");
    answers.put("getState", state);
    answers.put("getTotalCapability", SIZE);
    return answering(RMNode.class, answers);
  }

  static Configuration configuration(String url) {
    Configuration configuration = new Configuration(false);
    configuration.set("placewise.url", url);
    configuration.set("placewise.queues", "root.gpu");
    return configuration;
  }

  static ResourceRequest request(int priority) {
    return ResourceRequest.newInstance(Priority.newInstance(priority), ResourceRequest.ANY, Resource.newInstance(64, 1), 1);
  }

  /** An ask for `count` containers that the service decides. */
  static Ask ask(ApplicationAttemptId attempt, int count, boolean isDryRun) {
    Ask ask = new Ask(attempt, SchedulerRequestKey.create(request(1)), isDryRun, new OpenAsks());
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
