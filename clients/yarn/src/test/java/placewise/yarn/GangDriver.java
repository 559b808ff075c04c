package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.Container;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.ContainerStatus;
import org.apache.hadoop.yarn.api.records.ExecutionTypeRequest;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceSizing;
import org.apache.hadoop.yarn.api.records.SchedulingRequest;
import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.api.resource.PlacementConstraints;
import org.apache.hadoop.yarn.client.api.AMRMClient;
import org.apache.hadoop.yarn.client.api.AMRMClient.ContainerRequest;
import org.apache.hadoop.yarn.client.api.NMClient;
import org.apache.hadoop.yarn.client.api.NMTokenCache;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.client.api.YarnClientApplication;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.YarnException;

/**
 * Many unmanaged ApplicationMasters in one JVM, on YARN's ordinary clients. Reads a JSON array of applications, prints one
 * JSON line for each that ends:
 * {"name": …, "delayMs": …, "tags": […], "queue": …, "waves": [[{"count": 2, "gpus": 4}]], "seconds": 1.5}. "properties"
 * are its scheduling properties. With "oneByOne" each container is asked for in a call of its own. Hosts in
 * "blacklist" are refused from "blacklistAfterMs" on. With "showsTags" a container prints its environment, to which its
 * allocation tags are added. An ask may name the only "host" that it takes, or be "apart": a SchedulingRequest whose
 * containers run on different nodes. The ApplicationMaster calls every "pollMs".
 */
public final class GangDriver {
  private static final ObjectMapper JSON = new ObjectMapper();
  private static final int POLL_MS = 20;
  /** A launch takes seconds on a busy machine, and the ApplicationMaster polls meanwhile. */
  private static final ExecutorService LAUNCHERS = Executors.newCachedThreadPool();
  private final YarnConfiguration configuration = new YarnConfiguration();
  private final JsonNode spec;
  private final ObjectNode result = JSON.createObjectNode();
  private final Map<ContainerId, Container> running = new ConcurrentHashMap<>();
  private final Map<ContainerId, CompletableFuture<Boolean>> launches = new HashMap<>();
  private NMClient nodes;
  private List<String> blacklist = new ArrayList<>();
  private long blacklistMs;

  private GangDriver(JsonNode spec) {
    this.spec = spec;
    configuration.setLong(YarnConfiguration.CLIENT_NM_CONNECT_MAX_WAIT_MS, 2_000);
    configuration.setLong(YarnConfiguration.CLIENT_NM_CONNECT_RETRY_INTERVAL_MS, 500);
  }

  public static void main(String[] arguments) throws Exception {
    JsonNode specs = JSON.readTree(Files.readAllBytes(Paths.get(arguments[0])));
    List<Thread> threads = new ArrayList<>();
    for (JsonNode spec : specs) {
      Thread thread = new Thread(new GangDriver(spec)::run, spec.path("name").asText());
      threads.add(thread);
      thread.start();
    }
    for (Thread thread : threads) {
      thread.join();
    }
    System.exit(0);
  }

  private void run() {
    result.put("name", spec.path("name").asText());
    try {
      Thread.sleep(spec.path("delayMs").asLong());
      serve();
    } catch (Exception error) {
      result.put("error", error + ", cause " + error.getCause());
    }
    synchronized (GangDriver.class) {
      System.out.println(result);
    }
  }

  private void serve() throws Exception {
    YarnClient client = YarnClient.createYarnClient();
    client.init(configuration);
    client.start();
    ApplicationId id = submit(client);
    result.put("application", id.toString());
    while (client.getApplicationReport(id).getYarnApplicationState() != YarnApplicationState.ACCEPTED
        || client.getAMRMToken(id) == null) {
      Thread.sleep(POLL_MS);
    }
    UserGroupInformation user = UserGroupInformation.createRemoteUser(UserGroupInformation.getCurrentUser().getUserName());
    user.addToken(client.getAMRMToken(id));
    user.doAs((PrivilegedExceptionAction<Void>) () -> {
      master();
      return null;
    });
    client.stop();
  }

  private ApplicationId submit(YarnClient client) throws Exception {
    YarnClientApplication created = client.createApplication();
    ApplicationSubmissionContext context = created.getApplicationSubmissionContext();
    context.setApplicationName(spec.path("name").asText());
    context.setQueue(spec.path("queue").asText("default"));
    context.setPriority(Priority.newInstance(spec.path("priority").asInt()));
    context.setUnmanagedAM(true);
    context.setMaxAppAttempts(1);
    context.setResource(Resource.newInstance(64, 1));
    context.setAMContainerSpec(ContainerLaunchContext.newInstance(null, null, null, null, null, null));
    Set<String> tags = new HashSet<>();
    spec.path("tags").forEach(tag -> tags.add(tag.asText()));
    context.setApplicationTags(tags);
    Map<String, String> properties = new HashMap<>();
    spec.path("properties").fields().forEachRemaining(one -> properties.put(one.getKey(), one.getValue().asText()));
    context.setApplicationSchedulingPropertiesMap(properties);
    return client.submitApplication(context);
  }

  private void master() throws Exception {
    AMRMClient<ContainerRequest> scheduler = AMRMClient.createAMRMClient();
    NMTokenCache tokens = new NMTokenCache(); // the default one is shared by the whole JVM
    scheduler.setNMTokenCache(tokens);
    scheduler.init(configuration);
    scheduler.start();
    nodes = NMClient.createNMClient();
    nodes.setNMTokenCache(tokens);
    nodes.init(configuration);
    nodes.start();
    scheduler.registerApplicationMaster("localhost", 0, "");
    spec.path("blacklist").forEach(host -> blacklist.add(host.asText()));
    blacklistMs = System.currentTimeMillis() + spec.path("blacklistAfterMs").asLong();
    ArrayNode waves = result.putArray("waves");
    for (JsonNode wave : spec.path("waves")) {
      waves.add(wave(scheduler, wave));
    }
    scheduler.unregisterApplicationMaster(FinalApplicationStatus.SUCCEEDED, "", "");
    scheduler.stop();
    nodes.cleanupRunningContainersOnStop(false);
    nodes.stop();
  }

  private ObjectNode wave(AMRMClient<ContainerRequest> scheduler, JsonNode asks) throws Exception {
    Map<Integer, List<ContainerRequest>> wanted = new HashMap<>();
    int left = 0;
    int priority = 1;
    for (JsonNode ask : asks) {
      Resource each = Resource.newInstance(ask.path("mib").asInt(64), ask.path("cores").asInt(1),
          Collections.singletonMap("yarn.io/gpu", ask.path("gpus").asLong()));
      int count = ask.path("count").asInt();
      List<ContainerRequest> open = wanted.computeIfAbsent(priority, key -> new ArrayList<>());
      if (ask.path("apart").asBoolean()) {
        scheduler.addSchedulingRequests(Collections.singletonList(apart(each, count, priority)));
        open.addAll(Collections.nCopies(count, null));
      } else {
        for (int i = 0; i < count; i++) {
          open.add(request(ask, each, priority));
          scheduler.addContainerRequest(open.get(i));
          if (spec.path("oneByOne").asBoolean() && i + 1 < count && !poll(scheduler).isEmpty()) {
            throw new IllegalStateException("a container came before all were asked for");
          }
        }
      }
      left += count;
      priority++;
    }
    ObjectNode outcome = JSON.createObjectNode().put("askedMs", System.currentTimeMillis());
    ArrayNode containers = outcome.putArray("containers");
    Map<Container, ContainerRequest> handed = new LinkedHashMap<>();
    while (left > 0) {
      List<Container> more = poll(scheduler);
      outcome.put("allocatedMs", System.currentTimeMillis()); // without the launching
      for (Container container : more) {
        List<ContainerRequest> open = wanted.get(container.getPriority().getPriority());
        if (open == null || open.isEmpty()) { // YARN may allocate one more than was asked for
          scheduler.releaseAssignedContainer(container.getId());
          outcome.put("surplus", outcome.path("surplus").asInt() + 1);
          continue;
        }
        ContainerRequest served = open.remove(0);
        if (served != null) {
          scheduler.removeContainerRequest(served);
        }
        handed.put(container, served);
        launches.put(container.getId(), CompletableFuture.supplyAsync(() -> isLaunched(container), LAUNCHERS));
        left--;
      }
      if (left > 0) {
        continue;
      }
      for (Map.Entry<Container, ContainerRequest> one : handed.entrySet()) {
        Container container = one.getKey();
        ContainerRequest served = one.getValue();
        if (!launches.remove(container.getId()).get() && served != null) { // its node is dead: another takes its place
          scheduler.releaseAssignedContainer(container.getId());
          scheduler.addContainerRequest(served);
          wanted.get(container.getPriority().getPriority()).add(served);
          outcome.put("again", outcome.path("again").asInt() + 1);
          left++;
          continue;
        }
        containers.addObject().put("id", container.getId().toString()).put("node", container.getNodeId().getHost());
      }
      handed.clear();
    }
    while (!running.isEmpty()) {
      poll(scheduler).forEach(container -> scheduler.releaseAssignedContainer(container.getId()));
    }
    return outcome;
  }

  private static ContainerRequest request(JsonNode ask, Resource each, int priority) {
    String[] hosts = ask.hasNonNull("host") ? new String[] {ask.path("host").asText()} : null;
    return new ContainerRequest(each, hosts, null, Priority.newInstance(priority), hosts == null,
        ask.hasNonNull("label") ? ask.path("label").asText() : null);
  }

  private static SchedulingRequest apart(Resource each, int count, int priority) {
    return SchedulingRequest.newBuilder().priority(Priority.newInstance(priority)).allocationRequestId(priority)
        .executionType(ExecutionTypeRequest.newInstance()).allocationTags(Collections.singleton("apart"))
        .placementConstraintExpression(PlacementConstraints.targetNotIn(PlacementConstraints.NODE,
            PlacementConstraints.PlacementTargets.allocationTag("apart")).build())
        .resourceSizing(ResourceSizing.newInstance(count, each)).build();
  }

  private List<Container> poll(AMRMClient<ContainerRequest> scheduler) throws Exception {
    Thread.sleep(spec.path("pollMs").asLong(POLL_MS));
    if (!blacklist.isEmpty() && System.currentTimeMillis() >= blacklistMs) {
      scheduler.updateBlacklist(blacklist, null);
      blacklist = new ArrayList<>();
    }
    AllocateResponse response = scheduler.allocate(0);
    for (ContainerStatus status : response.getCompletedContainersStatuses()) {
      running.remove(status.getContainerId());
    }
    return response.getAllocatedContainers();
  }

  private boolean isLaunched(Container container) {
    try {
      launch(container);
      return true;
    } catch (IOException | YarnException error) {
      running.remove(container.getId());
      return false;
    }
  }

  private void launch(Container container) throws IOException, YarnException {
    String command = "sleep " + spec.path("seconds").asText("1");
    Map<String, String> environment = new HashMap<>();
    if (spec.path("showsTags").asBoolean()) {
      command = "env 1><LOG_DIR>/stdout; " + command;
      for (String tag : container.getAllocationTags()) {
        environment.put(tag.substring(0, tag.indexOf('=')), tag.substring(tag.indexOf('=') + 1));
      }
    }
    ContainerLaunchContext context = ContainerLaunchContext.newInstance(Collections.emptyMap(),
        environment, Collections.singletonList(command), Collections.emptyMap(), (ByteBuffer) null,
        Collections.emptyMap());
    running.put(container.getId(), container); // before it can end
    nodes.startContainer(container, context);
  }
}
