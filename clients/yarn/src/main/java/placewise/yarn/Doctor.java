package placewise.yarn;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.PrintStream;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/** `java -cp … placewise.yarn.Doctor`: lists the problems of this configuration. Exits with their number. */
public final class Doctor {
  private static final long BUDGET_MS = 5_000;
  private final YarnConfiguration configuration;
  private final PrintStream out;
  private int problems;

  Doctor(YarnConfiguration configuration, PrintStream out) {
    this.configuration = configuration;
    this.out = out;
  }

  public static void main(String[] arguments) {
    System.exit(new Doctor(new YarnConfiguration(), System.out).run());
  }

  /** Returns the number of problems. */
  int run() {
    names("yarn.resourcemanager.application-master-service.processors", PlacewiseProcessor.class);
    names("yarn.scheduler.app-placement-allocator.class", PlacewiseAllocator.class);
    String scheduler = configuration.get(YarnConfiguration.RM_SCHEDULER, YarnConfiguration.DEFAULT_RM_SCHEDULER);
    check(scheduler.endsWith("CapacityScheduler"), "scheduler: CapacityScheduler",
        scheduler + " never asks the gate; use the CapacityScheduler");
    configuration.addResource("capacity-scheduler.xml");
    String calculator = configuration.get("yarn.scheduler.capacity.resource-calculator", "");
    check(calculator.endsWith("DominantResourceCalculator"), "scheduler: counts GPUs",
        "yarn.scheduler.capacity.resource-calculator must be DominantResourceCalculator, or YARN does not count GPUs");
    if (Preemption.isOn(configuration)) {
      out.println("note: the pre-emption monitor is on: gangs of queues for which YARN may pre-empt are left to YARN"
          + " (README, Pre-emption); the ResourceManager's log names them at start");
    }
    check(configuration.get("yarn.resource-types", "").contains(Questions.GPU), "resource type " + Questions.GPU,
        "yarn.resource-types does not name " + Questions.GPU);
    service();
    out.println(problems == 0 ? "no problem found" : problems + " problems");
    return problems;
  }

  private void names(String property, Class<?> wanted) {
    check(configuration.get(property, "").contains(wanted.getName()), property,
        property + " does not name " + wanted.getName());
  }

  private void service() {
    Settings settings;
    try {
      settings = new Settings(configuration);
    } catch (IllegalArgumentException error) {
      check(false, "", error.getMessage());
      return;
    }
    settings.unknown().forEach(name -> check(false, "", name + " is no setting; the README lists them"));
    queues(settings);
    try (ServiceClient service = new ServiceClient(settings)) {
      JsonNode cluster = service.cluster(BUDGET_MS);
      check(true, "service: answers, and knows " + cluster.path("nodes").size() + " nodes of " + settings.cluster, "");
    } catch (ServiceException error) {
      boolean isNew = error.status == 404 && error.getMessage().contains("NOT_FOUND"); // not any server's 404
      check(isNew, "service: answers, and does not know cluster " + settings.cluster + " yet",
          "placewise.url: no Placewise answers at " + settings.url + ": " + error.getMessage());
    } catch (IllegalArgumentException error) {
      check(false, "", error.getMessage());
    }
  }

  private void queues(Settings settings) {
    if (settings.queues.isEmpty()) {
      out.println("note: placewise.queues is empty: only applications tagged placewise are decided");
    }
    Queues.missing(settings.queues, configuration).forEach(name -> check(false, "", "placewise.queues names " + name
        + ", and no leaf queue of capacity-scheduler.xml has this name (no problem if YARN makes it by itself)"));
  }

  private void check(boolean isGood, String good, String bad) {
    problems += isGood ? 0 : 1;
    out.println(isGood ? "ok: " + good : "PROBLEM: " + bad);
  }
}
