package placewise.yarn;

import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.yarn.api.records.Priority;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.ResourceRequest;
import org.apache.hadoop.yarn.api.records.ResourceTypeInfo;
import org.apache.hadoop.yarn.util.resource.ResourceUtils;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** The asks that the gate looks at, in a cluster that counts GPUs. */
public final class AllocatorTest {
  private List<ResourceTypeInfo> before;

  @Before
  public void countGpus() {
    before = new ArrayList<>(ResourceUtils.getResourcesTypeInfo());
    List<ResourceTypeInfo> types = new ArrayList<>(before);
    types.add(ResourceTypeInfo.newInstance(Questions.GPU));
    ResourceUtils.reinitializeResources(types);
  }

  @After
  public void countThemNoLonger() {
    ResourceUtils.reinitializeResources(before);
  }

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
