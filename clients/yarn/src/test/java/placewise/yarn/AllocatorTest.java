package placewise.yarn;

import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.junit.Test;

/** The asks that the gate looks at, in a cluster that counts GPUs. */
public final class AllocatorTest {
  private static ResourceRequest request(long gpus, boolean mayGoElsewhere) {
    Resource each = Resource.newInstance(64, 1);
    each.setResourceValue(Questions.GPU, gpus);
    return ResourceRequest.newInstance(Priority.newInstance(1), ResourceRequest.ANY, each, 1, mayGoElsewhere);
  }

  @Test
  public void asksWithoutGpusOrForNamedHostsAloneAreLeftToYarn() {
    assertTrue(PlacewiseAllocator.isDecidable(request(1, true)));
    assertFalse(PlacewiseAllocator.isDecidable(request(0, true)));
    assertFalse(PlacewiseAllocator.isDecidable(request(1, false)));
  }
}
