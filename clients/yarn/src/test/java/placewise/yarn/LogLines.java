package placewise.yarn;

import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.log4j.AppenderSkeleton;
import org.apache.log4j.Level;
import org.apache.log4j.Logger;
import org.apache.log4j.spi.LoggingEvent;

/** The adapter's log lines until `close`. */
final class LogLines extends AppenderSkeleton implements AutoCloseable {
  private static final Logger LOGGER = Logger.getLogger("placewise.yarn");
  private final List<String> lines = new ArrayList<>();

  LogLines() {
    LOGGER.setLevel(Level.INFO);
    LOGGER.addAppender(this);
  }

  /** The lines with these words, oldest first. */
  synchronized List<String> with(String words) {
    return lines.stream().filter(line -> line.contains(words)).collect(Collectors.toList());
  }

  @Override
  protected synchronized void append(LoggingEvent event) {
    lines.add(event.getRenderedMessage());
  }

  @Override
  public void close() {
    LOGGER.removeAppender(this);
  }

  @Override
  public boolean requiresLayout() {
    return false;
  }
}
