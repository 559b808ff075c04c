package placewise.yarn;

import java.io.IOException;
import java.util.Collection;
import java.util.LinkedHashSet;
import java.util.Set;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceContext;
import org.apache.hadoop.yarn.ams.ApplicationMasterServiceProcessor;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateRequest;
import org.apache.hadoop.yarn.api.protocolrecords.AllocateResponse;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.FinishApplicationMasterResponse;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterRequest;
import org.apache.hadoop.yarn.api.protocolrecords.RegisterApplicationMasterResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ResourceBlacklistRequest;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.server.resourcemanager.RMContext;

/**
 * Sees which asks an application sends in one call: they are one gang. Changes no request and waits for nothing. The
 * containers of a divisible task get their shares in the answer.
 * `yarn.resourcemanager.application-master-service.processors` names it.
 */
public final class PlacewiseProcessor implements ApplicationMasterServiceProcessor {
  /** The asks that the allocate call of this thread has changed; null outside such a call, and if not managed. */
  private static final ThreadLocal<Set<Ask>> CHANGED = new ThreadLocal<>();
  private ApplicationMasterServiceProcessor next;

  static Set<Ask> changedInThisCall() {
    return CHANGED.get();
  }

  @Override
  public void init(ApplicationMasterServiceContext context, ApplicationMasterServiceProcessor nextProcessor) {
    next = nextProcessor;
    RMContext resourceManager = (RMContext) context;
    Placewise.start(resourceManager, resourceManager.getYarnConfiguration());
  }

  @Override
  public void registerApplicationMaster(ApplicationAttemptId attempt, RegisterApplicationMasterRequest request,
      RegisterApplicationMasterResponse response) throws IOException, YarnException {
    next.registerApplicationMaster(attempt, request, response);
    Placewise.current().registered(attempt);
  }

  @Override
  public void allocate(ApplicationAttemptId attempt, AllocateRequest request, AllocateResponse response)
      throws YarnException {
    Placewise placewise = Placewise.current();
    if (!isEmpty(request.getSchedulingRequests())) { // YARN gives them an allocator of its own
      placewise.keepOpen(attempt);
    }
    AppFacts app = placewise.facts(attempt);
    boolean isBlacklistNew = changesBlacklist(request.getResourceBlacklistRequest());
    boolean isNews = isBlacklistNew || !isEmpty(request.getAskList());
    if (app == null || !(isNews || app.tags.isDivisible()) || !placewise.isManaged(app)) {
      next.allocate(attempt, request, response);
      return;
    }
    Set<Ask> changed = new LinkedHashSet<>();
    CHANGED.set(changed);
    try {
      next.allocate(attempt, request, response);
    } finally {
      CHANGED.remove();
      if (!changed.isEmpty() || isBlacklistNew) {
        placewise.blacklistChanged(attempt);
      }
      if (!changed.isEmpty()) {
        placewise.asksChanged(attempt, changed);
      }
    }
    if (app.tags.isDivisible()) {
      placewise.share(attempt, response.getAllocatedContainers());
    }
  }

  private static boolean changesBlacklist(ResourceBlacklistRequest request) {
    return request != null
        && !(isEmpty(request.getBlacklistAdditions()) && isEmpty(request.getBlacklistRemovals()));
  }

  private static boolean isEmpty(Collection<?> list) {
    return list == null || list.isEmpty();
  }

  @Override
  public void finishApplicationMaster(ApplicationAttemptId attempt, FinishApplicationMasterRequest request,
      FinishApplicationMasterResponse response) {
    next.finishApplicationMaster(attempt, request, response);
  }
}
