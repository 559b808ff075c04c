package placewise.yarn;

import java.util.function.LongSupplier;

/** Keeps questions away from a service that has just failed, for 0.1 s to 1 s. Times are milliseconds. */
final class Breaker {
  private static final long FIRST_MS = 100;
  private static final long LONGEST_MS = 1_000;
  private final LongSupplier clock;
  private int failed;
  private long openUntil = Long.MIN_VALUE;
  private String reason = "";

  Breaker(LongSupplier clock) {
    this.clock = clock;
  }

  synchronized boolean isOpen() {
    return clock.getAsLong() < openUntil;
  }

  synchronized String reason() {
    return reason;
  }

  synchronized void fail(String why) {
    long pause = Math.min(LONGEST_MS, FIRST_MS << Math.min(failed, 4));
    failed++;
    openUntil = clock.getAsLong() + pause;
    reason = why;
  }

  /** Returns whether the service had been failing. */
  synchronized boolean succeed() {
    boolean wasFailing = failed > 0;
    failed = 0;
    openUntil = Long.MIN_VALUE;
    return wasFailing;
  }
}
