package placewise.yarn;

import java.util.Collection;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;

/**
 * A user's words about an application: tags such as `placewise`, `placewise.gang=4`, or scheduling properties of the
 * same names. Untrusted: unreadable words, and numbers out of bounds, count as absent.
 */
final class Tags {
  private static final String NAME = "placewise";
  private static final int MOST_TASKS = 100_000;
  private static final int LONGEST_TEXT = 253;
  private static final double MOST = 1e15;
  private final Map<String, String> words = new HashMap<>();
  private boolean isNamed;

  Tags(Collection<String> tags, Map<String, String> properties) {
    if (tags != null) {
      for (String tag : tags) {
        read(tag);
      }
    }
    if (properties != null) {
      properties.forEach((name, value) -> read(name + "=" + value));
    }
  }

  private void read(String word) {
    if (word == null || word.length() > LONGEST_TEXT * 2) {
      return;
    }
    int equals = word.indexOf('=');
    String name = (equals < 0 ? word : word.substring(0, equals)).trim().toLowerCase(Locale.ROOT);
    if (!name.equals(NAME) && !name.startsWith(NAME + ".")) {
      return;
    }
    isNamed = true;
    String value = equals < 0 ? "" : word.substring(equals + 1).trim();
    if (value.length() <= LONGEST_TEXT && value.chars().noneMatch(Character::isISOControl)) {
      words.put(name.equals(NAME) ? "" : name.substring(NAME.length() + 1), value);
    }
  }

  /** Whether the user wants the application decided. */
  boolean isOptIn() {
    return isNamed && !isOptOut();
  }

  boolean isOptOut() {
    String switched = words.getOrDefault("", "");
    return switched.equalsIgnoreCase("off") || switched.equalsIgnoreCase("false");
  }

  /** Declared number of containers of the first gang; 0 if none. */
  int gang() {
    return count("gang");
  }

  /** GPUs with which a gang may start that asks for more; 0 if it needs all of them. */
  int fewestGpus() {
    return count("min-gpus");
  }

  private int count(String name) {
    double count = number(name);
    return count == Math.rint(count) && count <= MOST_TASKS ? (int) count : 0;
  }

  String model() {
    return words.getOrDefault("model", "");
  }

  /** Whether the application is one task that Partition splits over its containers. */
  boolean isDivisible() {
    return number("divisible") > 0;
  }

  /** Kind of the divisible task. */
  String kind() {
    return words.getOrDefault("kind", "");
  }

  /** A positive number by its name (epochs, batch, samples, iterations, gpu-seconds, …); 0 if absent. */
  double number(String name) {
    try {
      double value = Double.parseDouble(words.getOrDefault(name, "0"));
      return value > 0 && value <= MOST ? value : 0;
    } catch (NumberFormatException error) {
      return 0;
    }
  }
}
