package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.AbstractLeafQueue;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacityScheduler;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.capacity.CapacitySchedulerConfiguration;
import org.junit.Test;

/** A queue, or a user, may have two of the eight cores. */
public final class QueueLimitsTest extends WholeAdapter {
  private void start(int maximum) throws Exception {
    CapacitySchedulerConfiguration own = new CapacitySchedulerConfiguration();
    own.set("yarn.scheduler.capacity.root.queues", "gpu,other");
    own.set("yarn.scheduler.capacity.root.gpu.capacity", "25");
    own.set("yarn.scheduler.capacity.root.gpu.maximum-capacity", Integer.toString(maximum));
    own.set("yarn.scheduler.capacity.root.other.capacity", "75");
    CapacityScheduler scheduler = Fakes.scheduler(own);
    ((AbstractLeafQueue) scheduler.getQueue("root.gpu")).getUsersManager().getUserAndAddIfAbsent("ann");
    start(Fakes.activeContext(configuration, scheduler, event -> {}, "n1"));
  }

  private void submitTogether(int... containers) {
    synchronized (Placewise.current().broker) { // all are in the next question
      for (int i = 0; i < containers.length; i++) {
        submit(i + 1, containers[i]);
      }
    }
  }

  /** Of three gangs in one answer the last gives its place back, and a fourth is not asked about. */
  private void twoOfThreeStart(int size, String why) throws Exception {
    until(() -> asks.get(0).hasGrants() && asks.get(1).hasGrants() && asks.get(2).reason().equals(why));
    assertEquals(3, service.bodies("jobs:admitOrWait").get(0).path("jobs").size());
    until(() -> service.bodies("jobs:reportEvents").stream().flatMap(body -> body.findValuesAsText("reservationId").stream())
        .anyMatch(id -> id.contains(asks.get(2).attempt.toString())));
    long asked = service.calls("jobs:admitOrWait");
    submit(4, size);
    until(() -> asks.get(3).reason().equals(why));
    assertFalse(asks.get(2).hasGrants());
    assertEquals(asked, service.calls("jobs:admitOrWait"));
  }

  @Test
  public void gangsOfOneAnswerDoNotPassTheMaximumOfTheirQueueTogether() throws Exception {
    service.placeOn("n1");
    start(25);
    submitTogether(1, 1, 1);
    twoOfThreeStart(1, "queue root.gpu is at its maximum");
  }

  @Test
  public void gangsOfOneAnswerDoNotPassTheLimitOfTheirUserTogether() throws Exception {
    service.placeOn("n1");
    start(100);
    submitTogether(1, 2, 2);
    twoOfThreeStart(2, "user ann is at the limit in queue root.gpu");
  }

  @Test
  public void theFirstGangKeepsItsPartOfTheQueueWhileItWaits() throws Exception {
    start(25);
    submitTogether(1, 2, 1);
    until(() -> asks.get(1).reason().equals("queue root.gpu is at its maximum"));
    until(() -> service.bodies("jobs:admitOrWait").stream().anyMatch(question -> question.path("jobs").size() == 2));
  }

  @Test
  public void theFirstGangKeepsItsPartWhenOneOfAQuestionCannotBeRead() throws Exception {
    service.placeOn("n1");
    service.hold(Fakes.attempt(1).toString());
    start(25);
    synchronized (Placewise.current().broker) {
      submitTogether(1, 1, 1, 1);
      service.refuse(Placewise.current().broker.due().values().iterator().next().get(3).id());
    }
    until(() -> asks.get(3).reason().equals("queue root.gpu is at its maximum")); // the last that is asked about alone
    assertTrue(asks.get(1).hasGrants());
    assertFalse(asks.get(2).hasGrants());
  }

  @Test
  public void nothingIsKeptForAGangThatFitsNowhere() throws Exception {
    service.placeOn("NO_SHAPE");
    start(25);
    submitTogether(2, 2);
    until(() -> asks.stream().allMatch(ask -> ask.reason().equals("no shape fits")));
  }

  @Test
  public void nothingIsKeptForAGangLargerThanItsQueue() throws Exception {
    service.placeOn("n1");
    start(25);
    submitTogether(3, 2);
    until(() -> asks.get(1).hasGrants());
    assertEquals("queue root.gpu is at its maximum", asks.get(0).reason());
  }
}
