package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** In a cold JVM the first question would take longer than its budget. */
public final class WarmUpTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  @Test
  public void theFirstQuestionAndItsAnswerLoadNoClassesOfTheAdapter() throws Exception {
    File lines = folder.newFile("lines");
    Process java = new ProcessBuilder(Paths.get(System.getProperty("java.home"), "bin", "java").toString(),
        "-verbose:class", "-cp", System.getProperty("java.class.path"), ColdStart.class.getName())
        .redirectErrorStream(true).redirectOutput(lines).start();
    assertTrue(java.waitFor(60, TimeUnit.SECONDS));
    List<String> all = Files.readAllLines(lines.toPath());
    assertEquals(0, java.exitValue());
    List<String> late = all.subList(all.indexOf(ColdStart.WARM), all.size()).stream()
        .filter(line -> line.contains(" placewise.yarn.") && !line.contains("$$Lambda")).collect(Collectors.toList());
    assertEquals(Collections.emptyList(), late);
  }
}
