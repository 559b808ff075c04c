package placewise.yarn;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.function.LongSupplier;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;

/** Makes gangs of the containers that an attempt asks for. The Broker's monitor guards it. */
final class Forming {
  private final LongSupplier clock;
  private final List<Gang> unheld;
  private final String run = UUID.randomUUID().toString().substring(0, 8);

  /** Each new gang joins `unheld`. */
  Forming(LongSupplier clock, List<Gang> unheld) {
    this.clock = clock;
    this.unheld = unheld;
  }

  /** Forms gangs of the containers that no question covers yet. */
  Collection<Gang> form(ApplicationAttemptId id, Attempt attempt) {
    if (attempt.app.isByContainer) {
      return formEach(id, attempt);
    }
    Map<String, Gang> byPartition = new TreeMap<>();
    for (Ask ask : attempt.asks) {
      int need = ask.need();
      if (need <= 0 || !ask.isManaged()) {
        continue;
      }
      Gang gang = byPartition.computeIfAbsent(ask.partition(), label -> incomplete(id, attempt, label));
      gang.counts.merge(ask, need, Integer::sum);
      ask.addAsked(need);
    }
    for (Gang gang : byPartition.values()) {
      boolean isWhole = gang.size() >= attempt.app.tags.gang() || gang.wave > 1;
      if (isWhole) {
        gang.await(clock.getAsLong());
      } else {
        gang.stage = Gang.Stage.INCOMPLETE;
        gang.explain("waiting for the rest of its gang");
      }
    }
    return byPartition.values();
  }

  /** Forms one gang for each container. */
  private Collection<Gang> formEach(ApplicationAttemptId id, Attempt attempt) {
    List<Gang> formed = new ArrayList<>();
    for (Ask ask : attempt.asks) {
      for (int need = ask.isManaged() ? ask.need() : 0; need > 0; need--) {
        Gang gang = create(id, attempt);
        gang.counts.put(ask, 1);
        ask.addAsked(1);
        gang.await(clock.getAsLong());
        formed.add(gang);
      }
    }
    return formed;
  }

  private Gang incomplete(ApplicationAttemptId id, Attempt attempt, String label) {
    for (Gang gang : attempt.gangs) {
      if (gang.stage == Gang.Stage.INCOMPLETE && gang.partition().equals(label)) {
        return gang;
      }
    }
    return create(id, attempt);
  }

  private Gang create(ApplicationAttemptId id, Attempt attempt) {
    Gang gang = new Gang(id, attempt.app, ++attempt.waves, run, clock.getAsLong());
    gang.blacklist = attempt.blacklist;
    attempt.gangs.add(gang);
    unheld.add(gang);
    return gang;
  }

  /** Takes `by` containers of an ask out of a gang that waits; a gang without containers ends. */
  void shrink(Attempt attempt, Gang gang, Ask ask, int by) {
    ask.addAsked(-by);
    int left = gang.counts.get(ask) - by;
    if (left > 0) {
      gang.counts.put(ask, left);
    } else {
      gang.counts.remove(ask);
    }
    if (gang.counts.isEmpty()) {
      gang.stage = Gang.Stage.ENDED;
      attempt.gangs.remove(gang);
    }
  }
}
