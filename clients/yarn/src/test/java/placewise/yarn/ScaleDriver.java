package placewise.yarn;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.PrivilegedExceptionAction;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.ipc.RPC;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.ApplicationMasterProtocol;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterRequest;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.ContainerLaunchContext;
import org.apache.hadoop.yarn.api.records.NodeId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.client.ClientRMProxy;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.api.ResourceTracker;
import org.apache.hadoop.yarn.server.api.ServerRMProxy;
import org.apache.hadoop.yarn.server.api.protocolrecords.NodeHeartbeatRequest;
import org.apache.hadoop.yarn.server.api.protocolrecords.RegisterNodeManagerRequest;
import org.apache.hadoop.yarn.server.api.protocolrecords.RegisterNodeManagerResponse;
import org.apache.hadoop.yarn.server.api.records.NodeHealthStatus;
import org.apache.hadoop.yarn.server.api.records.NodeStatus;
import org.apache.hadoop.yarn.util.YarnVersionInfo;

/**
 * Thousands of nodes and applications for one ResourceManager, by its own protocols and without a process for any.
 * Reads commands, and answers each with "done": `nodes 1000` registers nodes with 8 GPUs; `fill` leaves two GPUs free on
 * each, outside Placewise; `asks 500` lets so many applications wait in all, with two containers of 4 GPUs each;
 * `beat 1000` sends so many heartbeats, of different nodes.
 */
public final class ScaleDriver {
  static final long WAITING_GPUS = 4;
  private static final int AT_ONCE = 16;
  private static final int POLL_MS = 10;
  private static final int MOST_ROUNDS = 100;
  private final YarnConfiguration configuration = new YarnConfiguration();
  private final List<FakeNode> nodes = new ArrayList<>();
  private final YarnClient client = YarnClient.createYarnClient();
  private final ResourceTracker tracker;
  private int asks;

  private ScaleDriver() throws Exception {
    configuration.setLong(YarnConfiguration.YARN_CLIENT_APPLICATION_CLIENT_PROTOCOL_POLL_INTERVAL_MS, POLL_MS);
    client.init(configuration);
    client.start();
    tracker = ServerRMProxy.createRMProxy(configuration, ResourceTracker.class);
  }

  public static void main(String[] arguments) throws Exception {
    ScaleDriver driver = new ScaleDriver();
    BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = commands.readLine(); line != null; line = commands.readLine()) {
      String[] words = line.split(" ");
      driver.execute(words[0], words.length > 1 ? Integer.parseInt(words[1]) : 0);
      System.out.println("done");
    }
    System.exit(0);
  }

  private void execute(String command, int count) throws Exception {
    switch (command) {
      case "nodes":
        while (nodes.size() < count) {
          nodes.add(new FakeNode("10.0." + nodes.size() / 250 + "." + (1 + nodes.size() % 250)));
        }
        beat(count);
        break;
      case "fill":
        fill();
        break;
      case "asks":
        wait(count);
        break;
      case "beat":
        beat(count);
        break;
      default:
        throw new IllegalArgumentException(command);
    }
  }

  private void beat(int count) throws Exception {
    for (int i = 0; i < count; i++) {
      nodes.get((int) ((long) i * nodes.size() / count)).beat();
    }
  }

  private void fill() throws Exception {
    Master filler = new Master(submit("placewise=off"));
    int left = nodes.size();
    filler.allocate(Collections.singletonList(ask(left, 6)));
    for (int round = 0; left > 0; round++) {
      if (round == MOST_ROUNDS) {
        throw new IllegalStateException(left + " nodes do not take a container");
      }
      beat(nodes.size());
      left -= filler.allocate(Collections.emptyList()).getAllocatedContainers().size();
    }
  }

  private void wait(int count) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(AT_ONCE);
    List<Future<?>> all = new ArrayList<>();
    for (; asks < count; asks++) {
      all.add(pool.submit(() -> {
        Master master = new Master(submit("placewise"));
        master.allocate(Collections.singletonList(ask(2, WAITING_GPUS)));
        master.close();
        return null;
      }));
    }
    for (Future<?> one : all) {
      one.get();
    }
    pool.shutdown();
  }

  private static ResourceRequest ask(int count, long gpus) {
    Resource each = Resource.newInstance(64, 1, Collections.singletonMap(Questions.GPU, gpus));
    return ResourceRequest.newInstance(Priority.newInstance(1), ResourceRequest.ANY, each, count, true);
  }

  private ApplicationId submit(String tag) throws Exception {
    ApplicationSubmissionContext context = client.createApplication().getApplicationSubmissionContext();
    context.setQueue("default");
    context.setUnmanagedAM(true);
    context.setResource(Resource.newInstance(64, 1));
    context.setAMContainerSpec(ContainerLaunchContext.newInstance(null, null, null, null, null, null));
    context.setApplicationTags(Collections.singleton(tag));
    return client.submitApplication(context);
  }

  /** An ApplicationMaster that has registered. */
  private final class Master {
    private final ApplicationMasterProtocol protocol;
    private int responseId;

    Master(ApplicationId id) throws Exception {
      while (client.getAMRMToken(id) == null) {
        Thread.sleep(POLL_MS);
      }
      UserGroupInformation user = UserGroupInformation.createRemoteUser(id.toString());
      user.addToken(client.getAMRMToken(id));
      protocol = user.doAs((PrivilegedExceptionAction<ApplicationMasterProtocol>) () ->
          ClientRMProxy.createRMProxy(configuration, ApplicationMasterProtocol.class));
      protocol.registerApplicationMaster(RegisterApplicationMasterRequest.newInstance("localhost", 0, ""));
    }

    AllocateResponse allocate(List<ResourceRequest> changed) throws Exception {
      AllocateResponse response = protocol.allocate(
          AllocateRequest.newInstance(responseId, 0, changed, Collections.emptyList(), null));
      responseId = response.getResponseId();
      return response;
    }

    void close() {
      RPC.stopProxy(protocol);
    }
  }

  /** A NodeManager that only registers and beats. */
  private final class FakeNode {
    private final NodeId id;
    private final RegisterNodeManagerResponse registration;
    private int responseId;

    /** YARN looks up the address of a name that a container goes to: an address needs no look. */
    FakeNode(String host) throws Exception {
      id = NodeId.newInstance(host, 1);
      Resource capability = Resource.newInstance(16_384, 32, Collections.singletonMap(Questions.GPU, 8L));
      registration = tracker.registerNodeManager(RegisterNodeManagerRequest.newInstance(id, 2, capability,
          YarnVersionInfo.getVersion(), Collections.emptyList(), Collections.emptyList(), Collections.emptySet()));
    }

    void beat() throws Exception {
      NodeStatus status = NodeStatus.newInstance(id, responseId, Collections.emptyList(), Collections.emptyList(),
          NodeHealthStatus.newInstance(true, "", System.currentTimeMillis()), null, null, null);
      responseId = tracker.nodeHeartbeat(NodeHeartbeatRequest.newInstance(status,
          registration.getContainerTokenMasterKey(), registration.getNMTokenMasterKey(), null)).getResponseId();
    }
  }
}
