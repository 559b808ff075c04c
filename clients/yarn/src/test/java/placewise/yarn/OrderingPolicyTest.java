package placewise.yarn;

import static org.junit.Assert.assertEquals;

import java.lang.reflect.Proxy;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.policy.IteratorSelector;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.policy.SchedulableEntity;
import org.apache.hadoop.yarn.server.scheduler.SchedulerRequestKey;
import org.junit.Before;
import org.junit.Test;

/** The scheduler sees every application with an ask that accepts some node, in order, and no other. */
public final class OrderingPolicyTest extends WholeAdapter {
  private static final int FILLER = 1000;
  private static final int FILLERS = 2 * PlacewiseOrderingPolicy.BY_TURNS;
  private final Map<SchedulableEntity, ApplicationAttemptId> attempts = new HashMap<>();
  private final PlacewiseOrderingPolicy<SchedulableEntity> policy = new PlacewiseOrderingPolicy<SchedulableEntity>() {
    @Override
    ApplicationAttemptId attemptOf(SchedulableEntity application) {
      return attempts.get(application);
    }
  };

  @Before
  public void startPlacewise() throws Exception {
    start(Fakes.activeContext(configuration, "n1"));
    for (int number = FILLER; number < FILLER + FILLERS; number++) {
      application(number);
    }
  }

  /** An application of the queue; they come in order of their numbers. */
  private SchedulableEntity application(int number) {
    SchedulableEntity[] made = new SchedulableEntity[1];
    made[0] = (SchedulableEntity) Proxy.newProxyInstance(getClass().getClassLoader(),
        new Class<?>[] {SchedulableEntity.class}, (proxy, method, arguments) -> {
          switch (method.getName()) {
            case "compareInputOrderTo":
              return number - attempts.get(arguments[0]).getApplicationId().getId();
            case "getId":
            case "toString":
              return "application " + number;
            case "getPriority":
              return Priority.newInstance(0);
            case "hashCode":
              return number;
            case "equals":
              return proxy == arguments[0];
            case "isRecovering":
              return false;
            default:
              return method.getReturnType() == long.class ? (Object) (long) number : null;
          }
        });
    attempts.put(made[0], Fakes.attempt(number));
    policy.addSchedulableEntity(made[0]);
    return made[0];
  }

  private static Ask held(int number, int key) {
    Ask ask = Placewise.current().ask(Fakes.attempt(number), SchedulerRequestKey.create(Fakes.request(key)));
    ask.setManaged(true);
    ask.setPending(true);
    return ask;
  }

  /** Those that every look sees. Others are seen by turns: a queue of fillers lets each have its turn apart. */
  private List<SchedulableEntity> seen() {
    Set<SchedulableEntity> seen = look();
    for (int look = 1; look < FILLERS; look++) {
      seen.retainAll(look());
    }
    return new ArrayList<>(seen);
  }

  private Set<SchedulableEntity> look() {
    Set<SchedulableEntity> seen = new LinkedHashSet<>();
    policy.getAssignmentIterator(IteratorSelector.EMPTY_ITERATOR_SELECTOR).forEachRemaining(seen::add);
    seen.removeIf(each -> attempts.get(each).getApplicationId().getId() >= FILLER);
    return seen;
  }

  @Test
  public void anApplicationIsSeenWhileOneOfItsAsksAcceptsSomeNode() {
    SchedulableEntity first = application(1);
    SchedulableEntity second = application(2);
    assertEquals(Arrays.asList(first, second), seen()); // before any ask of theirs
    Ask ask = held(1, 1);
    Ask other = held(1, 2);
    assertEquals(Collections.singletonList(second), seen());
    other.open(1, "left to YARN");
    assertEquals(Arrays.asList(first, second), seen());
    other.take("n1");
    assertEquals(Collections.singletonList(second), seen());
    ask.setManaged(false);
    assertEquals(Arrays.asList(first, second), seen());
    ask.setPending(false); // the container of the ApplicationMaster has come
    assertEquals(Collections.singletonList(second), seen());
  }

  @Test
  public void anApplicationWithSchedulingRequestsIsAlwaysSeen() {
    SchedulableEntity application = application(1);
    Ask ask = held(1, 1);
    assertEquals(Collections.emptyList(), seen());
    Placewise.current().keepOpen(Fakes.attempt(1));
    ask.setPending(false);
    assertEquals(Collections.singletonList(application), seen());
  }

  @Test
  public void aGrantIsSeenUntilItIsTakenOrWithdrawn() {
    SchedulableEntity application = application(1);
    Ask ask = held(1, 1);
    Gang gang = new Gang(Fakes.attempt(1), null, 1, "run", 0);
    ask.grant(gang, Arrays.asList("n1", "n2"));
    assertEquals(Collections.singletonList(application), seen());
    ask.take("n1");
    assertEquals(Collections.singletonList(application), seen());
    ask.withdraw(gang);
    assertEquals(Collections.emptyList(), seen());
  }

  @Test
  public void applicationsComeAndGoInOrder() {
    SchedulableEntity third = application(3);
    assertEquals(Collections.singletonList(third), seen());
    SchedulableEntity first = application(1);
    assertEquals(Arrays.asList(first, third), seen());
    policy.removeSchedulableEntity(third);
    assertEquals(Collections.singletonList(first), seen());
    policy.addAllSchedulableEntities(Collections.singleton(third));
    assertEquals(Arrays.asList(first, third), seen());
  }

  @Test
  public void anApplicationThatIsHeldBackIsSeenByTurns() {
    SchedulableEntity application = application(1);
    held(1, 1);
    int times = 0;
    for (int look = 0; look < 1 + FILLERS; look++) {
      times += look().contains(application) ? 1 : 0;
    }
    assertEquals(PlacewiseOrderingPolicy.BY_TURNS, times);
  }

  @Test
  public void anotherStartForgetsTheAsksOfTheLastOne() throws Exception {
    SchedulableEntity application = application(1);
    held(1, 1);
    assertEquals(Collections.emptyList(), seen());
    start(Fakes.activeContext(configuration, "n1"));
    assertEquals(Collections.singletonList(application), seen());
  }
}
