package placewise.yarn;

import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.function.BooleanSupplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;
import org.junit.After;
import org.junit.Before;

/** For tests of the whole adapter: a service of the test's own, and the asks that were made. */
public abstract class WholeAdapter {
  private static final long PATIENCE_MS = 60_000;
  final List<Ask> asks = new ArrayList<>();
  StubService service;
  Configuration configuration;

  @Before
  public void startTheService() throws Exception {
    service = new StubService(0);
    configuration = Fakes.configuration(service.url());
    configuration.set("placewise.decide-budget-ms", "2000");
    configuration.set("placewise.retry-ms", "100");
    configuration.set("placewise.release-after-ms", "60000");
  }

  @After
  public void stopTheService() {
    Placewise.start(Fakes.context(configuration, Collections.emptyMap(), () -> null), configuration);
    service.close();
  }

  /** On a ResourceManager of these nodes. */
  void start(String... nodes) throws Exception {
    start(Fakes.activeContext(configuration, nodes));
  }

  void start(RMContext context) throws Exception {
    Placewise.start(context, configuration);
    until(() -> service.calls("nodes") > 0); // it has warmed up
  }

  /** An application of this number asks for a gang of so many containers. */
  Ask submit(int number, int containers) {
    Ask ask = Fakes.ask(Fakes.attempt(number), containers, false);
    asks.add(ask);
    changed(ask);
    return ask;
  }

  static void changed(Ask ask) {
    Placewise.current().broker.asksChanged(ask.attempt, new AppFacts(Fakes.app(Collections.emptyMap())),
        Collections.singleton(ask));
  }

  static void until(BooleanSupplier isTrue) throws InterruptedException {
    long deadline = System.nanoTime() + PATIENCE_MS * 1_000_000;
    while (!isTrue.getAsBoolean()) {
      assertTrue("waited too long", System.nanoTime() < deadline);
      Thread.sleep(5);
    }
  }
}
