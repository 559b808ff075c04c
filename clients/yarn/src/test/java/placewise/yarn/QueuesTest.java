package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.junit.Test;

/** Names of queues: a leaf by its name or by its whole path. */
public final class QueuesTest {
  @Test
  public void aQueueIsNamedByItsPathOrItsLastWord() {
    assertTrue(Queues.names(Collections.singleton("root.ml.gpu"), "root.ml.gpu"));
    assertTrue(Queues.names(Collections.singleton("gpu"), "root.ml.gpu"));
    assertFalse(Queues.names(Collections.singleton("ml"), "root.ml.gpu"));
  }

  @Test
  public void aNameThatNoLeafHasIsMissing() {
    Configuration scheduler = new Configuration(false);
    scheduler.set("yarn.scheduler.capacity.root.queues", "default,ml");
    scheduler.set("yarn.scheduler.capacity.root.ml.queues", "gpu");
    assertEquals(new TreeSet<>(Arrays.asList("gpus", "root.ml")),
        Queues.missing(Arrays.asList("gpus", "root.ml", "gpu", "root.ml.gpu", "default"), scheduler));
  }
}
