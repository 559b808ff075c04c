package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNotEquals;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.Set;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;
import org.junit.Test;

/** Blacklists as labels of nodes. */
public final class BlacklistsTest {
  private static Set<String> list(String... names) {
    return new HashSet<>(Arrays.asList(names));
  }

  @Test
  public void theLabelDependsOnTheNamesAlone() {
    assertEquals(Blacklists.label(list("n1", "n2")), Blacklists.label(list("n2", "n1")));
    assertNotEquals(Blacklists.label(list("n1")), Blacklists.label(list("n2")));
  }

  @Test
  public void aListHasNodesByTheirNamesAndRacks() {
    RMNode node = Fakes.answering(RMNode.class, Collections.singletonMap("getRackName", "/r1"));
    assertTrue(Blacklists.hasNode(list("n1"), "n1", node));
    assertTrue(Blacklists.hasNode(list("/r1"), "n1", node));
    assertTrue(!Blacklists.hasNode(list("n2", "/r2"), "n1", node));
  }

  @Test
  public void listsThatAreLabelsStayWhileTheyAreInForce() {
    Set<Set<String>> labelled = Collections.singleton(list("last"));
    Set<Set<String>> inForce = new LinkedHashSet<>();
    for (int number = 0; number < Blacklists.MOST; number++) {
      inForce.add(list("n" + number));
    }
    inForce.add(list("last"));
    Set<Set<String>> chosen = Blacklists.chosen(labelled, inForce);
    assertEquals(Blacklists.MOST, chosen.size());
    assertTrue(chosen.contains(list("last")));
    inForce.remove(list("last"));
    assertTrue(!Blacklists.chosen(labelled, inForce).contains(list("last")));
  }
}
