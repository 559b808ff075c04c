package placewise.yarn;

import java.util.function.LongSupplier;

/**
 * Decides how long no question is sent after a failure (0.1 s to 1 s), and which failures are logged. Times are
 * milliseconds.
 */
final class Breaker {
  private static final long FIRST_MS = 100;
  private static final long LONGEST_MS = 1_000;
  private static final long LOG_EVERY_MS = 60_000;
  private final LongSupplier clock;
  private int failed;
  private long openUntil = Long.MIN_VALUE;
  private long loggedMs;
  private String reason = "";

  Breaker(LongSupplier clock) {
    this.clock = clock;
  }

  synchronized boolean isOpen() {
    return clock.getAsLong() < openUntil;
  }

  /** Whether the service has not answered since its last failure. */
  synchronized boolean isFailing() {
    return failed > 0;
  }

  synchronized String reason() {
    return reason;
  }

  /** Returns the number of failures since the last answer if a log line is due; otherwise 0. */
  synchronized int fail(String why) {
    long now = clock.getAsLong();
    openUntil = now + Math.min(LONGEST_MS, FIRST_MS << Math.min(failed, 4));
    reason = why;
    failed++;
    if (failed > 1 && now - loggedMs < LOG_EVERY_MS) {
      return 0;
    }
    loggedMs = now;
    return failed;
  }

  /** Returns whether the service had been failing. */
  synchronized boolean succeed() {
    boolean wasFailing = failed > 0;
    failed = 0;
    openUntil = Long.MIN_VALUE;
    return wasFailing;
  }
}
