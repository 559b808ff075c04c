package placewise.yarn;

import static org.junit.Assert.assertEquals;

import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.metrics2.AbstractMetric;
import org.apache.hadoop.metrics2.MetricsRecord;
import org.apache.hadoop.metrics2.impl.MetricsCollectorImpl;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;
import org.junit.Test;

/** The counters as Hadoop's sinks and /jmx get them. */
public final class PlacewiseMetricsTest {
  private static Map<String, Number> collected() {
    MetricsCollectorImpl collector = new MetricsCollectorImpl();
    DefaultMetricsSystem.instance().getSource("Placewise").getMetrics(collector, true);
    Map<String, Number> found = new HashMap<>();
    for (MetricsRecord record : collector.getRecords()) {
      for (AbstractMetric metric : record.metrics()) {
        found.put(metric.name(), metric.value());
      }
    }
    return found;
  }

  @Test
  public void hadoopCollectsTheCountersOfTheLatestStart() {
    PlacewiseMetrics.registered().asked.incr(9);
    PlacewiseMetrics metrics = PlacewiseMetrics.registered();
    metrics.asked.incr();
    metrics.waiting.set(3);
    metrics.decideMs.add(4);
    Map<String, Number> found = collected();
    assertEquals(1L, found.get("Asked"));
    assertEquals(3L, found.get("Waiting"));
    assertEquals(1L, found.get("DecideMsNumOps"));
    assertEquals(4.0, found.get("DecideMsAvgTime").doubleValue(), 0.0);
  }
}
