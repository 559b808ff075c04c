package placewise.yarn;

import static org.junit.Assert.assertEquals;

import com.sun.net.httpserver.HttpServer;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.junit.Test;

/** The command that lists the problems of a configuration. */
public final class DoctorTest {
  private final ByteArrayOutputStream written = new ByteArrayOutputStream();

  private static YarnConfiguration good(String url) {
    YarnConfiguration configuration = new YarnConfiguration();
    configuration.set("placewise.url", url);
    configuration.set("placewise.queues", "root.gpu");
    configuration.set("yarn.resourcemanager.application-master-service.processors", PlacewiseProcessor.class.getName());
    configuration.set("yarn.scheduler.app-placement-allocator.class", PlacewiseAllocator.class.getName());
    configuration.set("yarn.scheduler.capacity.resource-calculator",
        "org.apache.hadoop.yarn.util.resource.DominantResourceCalculator");
    configuration.set("yarn.resource-types", Questions.GPU);
    configuration.set("yarn.scheduler.capacity.root.queues", "default, gpu");
    return configuration;
  }

  private int run(YarnConfiguration configuration) throws Exception {
    written.reset();
    return new Doctor(configuration, new PrintStream(written, true, "UTF-8")).run();
  }

  private List<String> problems() {
    return Arrays.stream(new String(written.toByteArray(), StandardCharsets.UTF_8).split("\n"))
        .filter(line -> line.startsWith("PROBLEM: ")).collect(Collectors.toList());
  }

  @Test
  public void aConfigurationThatWorksHasNoProblem() throws Exception {
    try (StubService service = new StubService(0)) {
      assertEquals(0, run(good(service.url())));
    }
    assertEquals(0, problems().size());
  }

  @Test
  public void eachMistakeIsNamed() throws Exception {
    try (StubService service = new StubService(0)) {
      for (String property : new String[] {"yarn.resourcemanager.application-master-service.processors",
          "yarn.scheduler.app-placement-allocator.class", "yarn.scheduler.capacity.resource-calculator",
          "yarn.resource-types"}) {
        YarnConfiguration configuration = good(service.url());
        configuration.set(property, "");
        assertEquals(property, 1, run(configuration));
        assertEquals(1, problems().stream().filter(line -> line.contains(property)).count());
      }
      YarnConfiguration fair = good(service.url());
      fair.set(YarnConfiguration.RM_SCHEDULER, "org.apache.hadoop.yarn.server.resourcemanager.scheduler.fair.FairScheduler");
      assertEquals(1, run(fair));
      YarnConfiguration clear = good("http://scheduler.example:8080");
      assertEquals(1, run(clear));
      assertEquals(1, problems().stream().filter(line -> line.contains("clear text")).count());
    }
  }

  private void isNamed(String property, String value, String words) throws Exception {
    try (StubService service = new StubService(0)) {
      YarnConfiguration configuration = good(service.url());
      configuration.set(property, value);
      assertEquals(property, 1, run(configuration));
      assertEquals(problems().toString(), 1, problems().stream().filter(line -> line.contains(words)).count());
    }
  }

  @Test
  public void aQueueThatDoesNotExistIsNamed() throws Exception {
    isNamed("placewise.queues", "gpu,root.gpus", "placewise.queues names root.gpus");
  }

  @Test
  public void aMisspeltSettingIsNamed() throws Exception {
    isNamed("placewise.dryrun", "true", "placewise.dryrun is no setting");
  }

  @Test
  public void aValueThatCannotBeReadIsNamed() throws Exception {
    isNamed("placewise.retry-ms", "1s", "placewise.retry-ms: must be a whole number, not 1s");
    isNamed("placewise.dry-run", "yes", "placewise.dry-run: must be true or false, not yes");
    isNamed("placewise.release-unshapeable", "1", "placewise.release-unshapeable: must be true or false, not 1");
    isNamed("placewise.url", "127.0.0.1:8080", "placewise.url: must begin with http");
    isNamed("placewise.url", "http://a b", "placewise.url: ");
  }

  @Test
  public void anotherServerAtTheAddressIsNamed() throws Exception {
    HttpServer other = HttpServer.create(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0), 0);
    other.start(); // it answers 404 to everything
    try {
      assertEquals(1, run(good("http://127.0.0.1:" + other.getAddress().getPort())));
    } finally {
      other.stop(0);
    }
  }

  @Test
  public void aServiceThatDoesNotAnswerIsNamed() throws Exception {
    assertEquals(1, run(good("http://127.0.0.1:1")));
    assertEquals(1, problems().stream().filter(line -> line.contains("http://127.0.0.1:1")).count());
  }
}
