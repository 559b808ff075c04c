package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import org.junit.Test;

/** Users write the tags. Unreadable tags count as absent, and no number leaves its bounds. */
public final class TagsTest {
  private static final String[] NAMES = {"placewise", "placewise.gang", "placewise.epochs", "placewise.model",
      "placewise.", "placewisely.gang", "PLACEWISE.GANG", "placewise.divisible", ""};
  private static final String[] VALUES = {"4", "-1", "0", "1e400", "NaN", "Infinity", "0x1p3", "4.5", "100001", "on",
      "off", "\u0000", "\n", "=", "\ud800", " 7 ", "1e-320", "9999999999999999999"};

  private static Tags of(String... tags) {
    return new Tags(new HashSet<>(Arrays.asList(tags)), Collections.emptyMap());
  }

  @Test
  public void whatIsReadableIsRead() {
    Tags tags = of("placewise.gang=4", "placewise.epochs=90", "placewise.model=resnet-50");
    assertEquals(4, tags.gang());
    assertEquals(90, tags.number("epochs"), 0);
    assertEquals("resnet-50", tags.model());
    assertTrue(tags.isOptIn());
    assertTrue(of("placewise=off", "placewise.gang=4").isOptOut());
  }

  @Test
  public void anUnreadableTagCountsAsAbsent() {
    for (String tag : new String[] {"placewise.gang=four", "placewise.gang=-4", "placewise.gang=4.5",
        "placewise.gang=1e9", "placewise.gang"}) {
      assertEquals(tag, 0, of(tag).gang());
    }
    assertFalse(of("placewisely", "other").isOptIn());
  }

  @Test
  public void noTagLeavesTheBounds() {
    Random random = new Random(20);
    for (int round = 0; round < 20_000; round++) {
      Set<String> tags = new HashSet<>();
      for (int i = random.nextInt(5); i > 0; i--) {
        tags.add(word(random));
      }
      Map<String, String> properties = Collections.singletonMap(one(NAMES, random), value(random));
      Tags read = new Tags(tags, properties);
      assertTrue(tags.toString(), read.gang() >= 0 && read.gang() <= 100_000);
      for (String name : new String[] {"epochs", "divisible", "gang", "gpu-seconds"}) {
        assertTrue(tags.toString(), read.number(name) >= 0 && read.number(name) <= 1e15);
      }
      assertTrue(read.model().length() <= 253 && read.model().chars().noneMatch(Character::isISOControl));
      assertFalse(read.isOptIn() && read.isOptOut());
    }
  }

  private static String word(Random random) {
    return one(NAMES, random) + (random.nextInt(4) == 0 ? "" : "=" + value(random));
  }

  private static String value(Random random) {
    if (random.nextInt(3) > 0) {
      return one(VALUES, random);
    }
    StringBuilder text = new StringBuilder();
    for (int left = random.nextInt(600); left > 0; left--) {
      text.append((char) random.nextInt(Character.MAX_VALUE));
    }
    return text.toString();
  }

  private static String one(String[] of, Random random) {
    return of[random.nextInt(of.length)];
  }
}
