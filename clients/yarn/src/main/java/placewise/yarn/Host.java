package placewise.yarn;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.hadoop.ha.HAServiceProtocol.HAServiceState;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.AbstractYarnScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.SchedulerNode;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CSQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The ResourceManager as the Asker's thread sees it: nodes, containers, limits. Others call isReady and name. */
final class Host {
  /** Complete reports take at most one in so many parts of the time, unless one would get so old. */
  private static final int REPORTING_PART = 10;
  private static final long OLDEST_REPORT_MS = 45_000;
  private static final Logger LOG = LoggerFactory.getLogger(Host.class);
  private static final long LOOK_MS = 250;
  private static final int MOST_REFUSED = 64;
  private final RMContext context;
  private final Placewise placewise;
  private final Books books;
  private final Nudges nudges;
  private Map<String, RMNode> nodes = new HashMap<>();
  private Map<String, ObjectNode> sent = new HashMap<>();
  private final Map<String, ObjectNode> refused = new HashMap<>();
  private long lookedMs = Long.MIN_VALUE / 2;
  private long sentMs = Long.MIN_VALUE / 2;
  private long tookMs;
  private Map<AppFacts, String> shown = new HashMap<>();
  private boolean hasOutcomes;
  private Set<Set<String>> blacklists = Collections.emptySet();
  private Map<String, String> refusals = Collections.emptyMap();
  private Set<String> missingQueues = Collections.emptySet();
  private long refusalsMs = Long.MIN_VALUE / 2;

  Host(RMContext context, Placewise placewise) {
    this.context = context;
    this.placewise = placewise;
    books = new Books(context, placewise);
    nudges = new Nudges(context);
  }

  /** Whether this ResourceManager is active and knows the containers of an earlier one. */
  boolean isReady() {
    return context.getHAServiceState() == HAServiceState.ACTIVE && context.isSchedulerReadyForAllocatingContainers();
  }

  private AbstractYarnScheduler<?, ?> scheduler() {
    return (AbstractYarnScheduler<?, ?>) context.getScheduler();
  }

  void checkContainers() {
    if (!hasOutcomes) {
      hasOutcomes = Outcomes.install(context);
    }
    books.check();
  }

  void recheckAll() {
    books.recheckAll();
  }

  void compareBooks(ServiceClient service, long budgetMs) throws ServiceException {
    books.compare(service, budgetMs);
  }

  /** YARN's limits for this gang and those behind it, less the granted gangs and, if it is another, the head. */
  Limits limits(String label, Gang gang, Gang head) {
    Limits limits = new Limits(context.getScheduler(), label);
    placewise.broker.granted().forEach(limits::add);
    Claim first = gang == head ? null : placewise.broker.claim(head, Integer.MAX_VALUE);
    if (first != null) {
      limits.keepFor(first);
    }
    return limits;
  }

  /** Why YARN would not allocate the gang now, or "". Gangs after the `head` leave its share of the queue free. */
  String limit(Gang gang, Gang head, Limits limits) {
    Claim claim = placewise.broker.nextClaim(gang, false);
    if (claim != null && !limits.passed(claim).isEmpty()) {
      claim = placewise.broker.nextClaim(gang, true);
    }
    if (claim == null) {
      return "";
    }
    String passed = limits.passed(claim);
    if (gang == head) {
      limits.keepFor(claim);
    }
    return isLabelled(gang) ? passed : "the service does not know its blacklist yet";
  }

  /** The same of so many containers once the service has decided: other gangs of its answer may have been granted. */
  String limitNow(Gang gang, Gang head, int containers) {
    Claim claim = placewise.broker.claim(gang, containers);
    return claim == null ? "" : limits(claim.label, gang, head).passed(claim);
  }

  /** Whether the last report of the nodes says which of them the application refuses. */
  private boolean isLabelled(Gang gang) {
    return gang.blacklist.isEmpty() || blacklists.contains(gang.blacklist);
  }

  /** Why the gang must not be held back, or "". */
  String refusal(Gang gang) {
    if (!isLabelled(gang) && blacklists.size() == Blacklists.MOST) {
      return "more than " + Blacklists.MOST + " different blacklists";
    }
    if (refusals.isEmpty()) {
      return "";
    }
    CSQueue queue = ((CapacityScheduler) context.getScheduler()).getQueue(gang.app.queue());
    return queue == null ? "" : refusals.getOrDefault(queue.getQueuePath(), "");
  }

  /** Queues and their settings may change while the ResourceManager runs. */
  void lookAtQueues() {
    long now = System.nanoTime() / 1_000_000;
    if (now - refusalsMs < LOOK_MS) {
      return;
    }
    refusalsMs = now;
    Set<String> missing = Queues.missing(placewise.settings.queues, context.getScheduler());
    if (!missing.equals(missingQueues)) {
      missingQueues = missing;
      missing.forEach(name -> LOG.warn("Placewise: placewise.queues names {}, and no leaf queue has this name", name));
    }
    Map<String, String> found = Preemption.refusals(context.getScheduler());
    if (!found.equals(refusals)) {
      refusals = found;
      new TreeMap<>(found)
          .forEach((queue, why) -> LOG.warn("Placewise: gangs of queue {} are left to YARN: {}", queue, why));
    }
  }

  /** Changed reasons go into the diagnostics of their applications. The caller holds no lock that YARN's threads need. */
  void show(Map<AppFacts, String> reasons) {
    reasons.forEach((app, reason) -> {
      if (!reason.equals(shown.getOrDefault(app, ""))) {
        app.tell(reason);
      }
    });
    shown.forEach((app, reason) -> {
      if (!reason.isEmpty() && !reasons.containsKey(app)) {
        app.tell("");
      }
    });
    shown = reasons;
  }

  /** Nodes that YARN knows. */
  int size() {
    return context.getRMNodes().size();
  }

  /** Looks at the nodes, and sends them if they have changed or the last report is old. Throws ServiceException. */
  void reportNodes(ServiceClient service, long budgetMs) throws ServiceException {
    long now = System.nanoTime() / 1_000_000;
    long seldomMs = Math.min(tookMs * REPORTING_PART, OLDEST_REPORT_MS);
    boolean isOld = now - sentMs >= Math.max(placewise.settings.nodeRefreshMs, seldomMs);
    Set<Set<String>> lists = Blacklists.chosen(blacklists, placewise.broker.blacklists());
    if (!isOld && now - lookedMs < LOOK_MS && lists.equals(blacklists)) {
      return;
    }
    lookedMs = now;
    blacklists = lists;
    Map<String, ObjectNode> seen = look();
    if (!isOld && seen.equals(sent)) {
      return;
    }
    boolean isFull = isOld || !seen.keySet().equals(sent.keySet());
    List<ObjectNode> news = new ArrayList<>();
    seen.forEach((name, node) -> {
      if (!node.equals(refused.get(name)) && (isFull || !node.equals(sent.get(name)))) {
        news.add(node);
      }
    });
    put(service, news, isFull, budgetMs);
    if (isFull) {
      sentMs = now;
      tookMs = System.nanoTime() / 1_000_000 - now;
    }
    sent = seen;
    placewise.broker.changed();
  }

  /** Sends the nodes that the service can read. An unreadable node is left out until it changes. */
  private void put(ServiceClient service, List<ObjectNode> news, boolean isFull, long budgetMs) throws ServiceException {
    List<ObjectNode> readable = new ArrayList<>(news);
    if (isRefused(service, readable, isFull, budgetMs)) {
      leaveOut(service, news, budgetMs);
      readable.removeIf(node -> node.equals(refused.get(node.path("id").asText())));
      if (isFull && isRefused(service, readable, true, budgetMs)) {
        LOG.warn("Placewise refuses the nodes, also without those that it refuses alone");
      }
    }
  }

  /** Sends them by halves, and records each node that is refused alone. */
  private void leaveOut(ServiceClient service, List<ObjectNode> part, long budgetMs) throws ServiceException {
    int middle = part.size() / 2;
    for (List<ObjectNode> half : Arrays.asList(part.subList(0, middle), part.subList(middle, part.size()))) {
      // After many refused nodes, the report itself is at fault.
      if (half.isEmpty() || refused.size() >= MOST_REFUSED || !isRefused(service, half, false, budgetMs)) {
        continue;
      }
      if (half.size() > 1) {
        leaveOut(service, half, budgetMs);
      } else {
        refused.put(half.get(0).path("id").asText(), half.get(0));
        LOG.warn("Placewise: node {} is left out: the service cannot read it", half.get(0).path("id").asText());
      }
    }
  }

  private static boolean isRefused(ServiceClient service, List<ObjectNode> part, boolean isFull, long budgetMs)
      throws ServiceException {
    ObjectNode request = JsonNodeFactory.instance.objectNode().put("full", isFull);
    ArrayNode list = request.putArray("nodes");
    String time = Questions.time(System.currentTimeMillis());
    for (ObjectNode node : part) {
      ObjectNode copy = node.deepCopy();
      copy.putObject("telemetry").put("observeTime", time);
      list.add(copy);
    }
    try {
      service.putNodes(request, budgetMs);
      return false;
    } catch (ServiceException error) {
      if (!error.isRefusal()) {
        throw error;
      }
      LOG.warn("Placewise refuses {} nodes: {}", part.size(), error.getMessage());
      return true;
    }
  }

  private Map<String, ObjectNode> look() {
    Map<String, RMNode> found = new HashMap<>();
    Map<String, ObjectNode> seen = new HashMap<>();
    for (RMNode node : context.getRMNodes().values()) {
      String name = name(node);
      found.put(name, node);
      seen.put(name, node(node, name, blacklists));
    }
    nodes = found;
    return seen;
  }

  private String name(RMNode node) {
    SchedulerNode known = scheduler().getSchedulerNode(node.getNodeID());
    return known == null ? node.getHostName() : known.getNodeName();
  }

  private static ObjectNode node(RMNode node, String name, Set<Set<String>> blacklists) {
    ObjectNode entry = JsonNodeFactory.instance.objectNode().put("id", name);
    entry.set("capacity", Questions.resources(node.getTotalCapability()));
    ArrayNode gpus = entry.putArray("gpus");
    for (int index = 0; index < Questions.gpus(node.getTotalCapability()); index++) {
      gpus.addObject().put("index", index);
    }
    entry.put("maxJobsPerGpu", 1).put("state", state(node.getState())).put("rack", node.getRackName());
    Set<String> labels = node.getNodeLabels();
    String partition = labels == null || labels.isEmpty() ? "" : labels.iterator().next();
    ObjectNode own = entry.putObject("labels").put(Questions.PARTITION_LABEL, Questions.labelOf(partition));
    for (Set<String> list : blacklists) {
      if (!Blacklists.hasNode(list, name, node)) {
        own.put(Blacklists.label(list), Blacklists.OTHER);
      }
    }
    return entry;
  }

  private static String state(NodeState state) {
    switch (state) {
      case RUNNING:
        return "READY";
      case DECOMMISSIONING:
        return "DRAINING";
      default:
        return "DOWN";
    }
  }

  /** The next report has all nodes: the service may have lost them. */
  void forgetNodes() {
    sent = new HashMap<>();
    refused.clear();
    sentMs = Long.MIN_VALUE / 2;
  }

  Collection<String> nodeNames() {
    return nodes.keySet();
  }

  /** Whether a container of an application with this blacklist could start on the node. */
  boolean isUsable(Set<String> blacklist, String name) {
    RMNode node = nodes.get(name);
    return node != null && node.getState() == NodeState.RUNNING && !Blacklists.hasNode(blacklist, name, node);
  }

  /** Lets the scheduler look at the chosen nodes now. */
  void nudge(List<Answer.Placed> granted) {
    nudges.nudge(granted, nodes);
  }

  String name(NodeId id) {
    return name(scheduler(), id);
  }

  /** The name by which decisions know the node. */
  static String name(AbstractYarnScheduler<?, ?> scheduler, NodeId id) {
    SchedulerNode node = scheduler.getSchedulerNode(id);
    return node == null ? id.getHost() : node.getNodeName();
  }
}
