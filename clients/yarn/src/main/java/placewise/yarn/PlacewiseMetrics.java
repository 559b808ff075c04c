package placewise.yarn;

import org.apache.hadoop.metrics2.MetricsSystem;
import org.apache.hadoop.metrics2.annotation.Metric;
import org.apache.hadoop.metrics2.annotation.Metrics;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.apache.hadoop.metrics2.lib.MutableCounterLong;
import org.apache.hadoop.metrics2.lib.MutableGaugeLong;
import org.apache.hadoop.metrics2.lib.MutableRate;

/** Counters of the adapter, at the ResourceManager's /jmx and metrics2 sinks. */
@Metrics(name = "Placewise", about = "Placewise for YARN", context = "yarn")
public final class PlacewiseMetrics {
  @Metric("questions asked") MutableCounterLong asked;
  @Metric("gangs that were given a place") MutableCounterLong admitted;
  @Metric("answers that hold a gang back") MutableCounterLong waited;
  @Metric("gangs without an answer, counted at each attempt") MutableCounterLong undecided;
  @Metric("gangs left to YARN") MutableCounterLong released;
  @Metric("decisions taken back") MutableCounterLong withdrawn;
  @Metric("gangs that run as decided") MutableCounterLong startedAsDecided;
  @Metric("events delivered") MutableCounterLong events;
  @Metric("events dropped") MutableCounterLong eventsDropped;
  @Metric("application attempts that name their own placement allocator") MutableCounterLong passedBy;
  @Metric("gangs that wait") MutableGaugeLong waiting;
  @Metric("milliseconds of a question") MutableRate decideMs;

  private static final String NAME = "Placewise";

  /** Each start of the active services registers a new source and removes the old one. */
  static synchronized PlacewiseMetrics registered() {
    MetricsSystem system = DefaultMetricsSystem.instance();
    system.unregisterSource(NAME);
    return system.register(NAME, "Placewise for YARN", new PlacewiseMetrics());
  }
}
