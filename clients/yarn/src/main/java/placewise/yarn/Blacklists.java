package placewise.yarn;

import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.Set;
import java.util.TreeSet;
import java.util.UUID;
import org.apache.hadoop.yarn.server.resourcemanager.rmnode.RMNode;

/**
 * Hosts and racks that applications refuse. A selector of the service asks for equality: so each list is a label that
 * all other nodes carry. The label's name depends on the list alone and never changes its meaning.
 */
final class Blacklists {
  /** The most lists that are labels at one time. */
  static final int MOST = 16;
  static final String OTHER = "true";

  private Blacklists() {}

  static String label(Set<String> list) {
    byte[] names = String.join("\n", new TreeSet<>(list)).getBytes(StandardCharsets.UTF_8);
    return "yarn.not-blacklisted." + UUID.nameUUIDFromBytes(names);
  }

  static boolean hasNode(Set<String> list, String name, RMNode node) {
    return list.contains(name) || list.contains(node.getRackName());
  }

  /** The lists in force, at most MOST of them: those that are labels already go before new ones. */
  static Set<Set<String>> chosen(Set<Set<String>> labelled, Collection<Set<String>> inForce) {
    Set<Set<String>> chosen = new LinkedHashSet<>(labelled);
    chosen.retainAll(inForce);
    for (Set<String> list : inForce) {
      if (chosen.size() < MOST) {
        chosen.add(list);
      }
    }
    return chosen;
  }
}
