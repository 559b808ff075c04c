package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceProcessor;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.server.resourcemanager.rmapp.RMApp;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.common.ApplicationSchedulingConfig;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.placement.LocalityAppPlacementAllocator;
import org.junit.Test;

/** The adapter as YARN makes it, on a ResourceManager that is not active. */
public final class PlacewiseTest {
  private static final String NOBODY = "http://127.0.0.1:1";

  @Test
  public void theThreadsOfAnEarlierTimeAreOverWhenTheNextBegins() throws Exception {
    CountDownLatch hasBegun = new CountDownLatch(1);
    AtomicBoolean isOver = new AtomicBoolean();
    Supplier<Object> longPass = () -> {
      hasBegun.countDown();
      try {
        Thread.sleep(60_000);
      } catch (InterruptedException stopped) {
        try {
          Thread.sleep(200); // a pass does not stop at once when interrupted
        } catch (InterruptedException again) {
          throw new IllegalStateException(again);
        }
        isOver.set(true);
      }
      return null;
    };
    Configuration configuration = Fakes.configuration(NOBODY);
    Placewise.start(Fakes.context(configuration, Collections.emptyMap(), longPass), configuration);
    hasBegun.await();
    Placewise.start(Fakes.context(configuration, Collections.emptyMap(), () -> null), configuration);
    assertTrue(isOver.get());
  }

  @Test
  public void theStartLogsWhatCannotBeDone() {
    Configuration configuration = Fakes.configuration(NOBODY);
    try (LogLines log = new LogLines()) {
      Placewise.start(Fakes.context(configuration, Collections.emptyMap(), () -> null), configuration);
      assertEquals(1, log.with("Placewise: not decided: FairScheduler, placement constraints, GPU indices, opportunistic"
          + " containers; Kerberos and federation have not been run").size());
    }
  }

  @Test
  public void aTagDecidesForOrAgainstPlacewiseWhateverTheQueue() {
    Configuration configuration = Fakes.configuration(NOBODY);
    for (String queues : new String[] {"", "root.gpu"}) {
      configuration.set("placewise.queues", queues);
      Placewise placewise = Placewise.start(Fakes.context(configuration, Collections.emptyMap(), () -> null), configuration);
      assertEquals(!queues.isEmpty(), placewise.isManaged(facts(Collections.emptyMap())));
      assertTrue(placewise.isManaged(facts(Collections.singletonMap("placewise", ""))));
      assertFalse(placewise.isManaged(facts(Collections.singletonMap("placewise", "off"))));
    }
  }

  private static AppFacts facts(Map<String, String> properties) {
    return new AppFacts(Fakes.app(properties));
  }

  @Test
  public void applicationsThatNameTheirOwnAllocatorAreCounted() throws Exception {
    Map<String, String> own = Collections.singletonMap(
        ApplicationSchedulingConfig.ENV_APPLICATION_PLACEMENT_TYPE_CLASS,
        LocalityAppPlacementAllocator.class.getName());
    Map<String, String> ours = Collections.singletonMap(
        ApplicationSchedulingConfig.ENV_APPLICATION_PLACEMENT_TYPE_CLASS, PlacewiseAllocator.class.getName());
    Map<ApplicationId, RMApp> apps = new HashMap<>();
    apps.put(Fakes.attempt(1).getApplicationId(), Fakes.app(own));
    apps.put(Fakes.attempt(2).getApplicationId(), Fakes.app(ours));
    apps.put(Fakes.attempt(3).getApplicationId(), Fakes.app(Collections.emptyMap()));
    Configuration configuration = Fakes.configuration(NOBODY);
    PlacewiseProcessor processor = new PlacewiseProcessor();
    processor.init(Fakes.context(configuration, apps, () -> null),
        Fakes.answering(ApplicationMasterServiceProcessor.class, Collections.emptyMap()));
    for (int number = 1; number <= 3; number++) {
      processor.registerApplicationMaster(Fakes.attempt(number), null, null);
    }
    assertEquals(1, Placewise.current().metrics.passedBy.value());
  }
}
