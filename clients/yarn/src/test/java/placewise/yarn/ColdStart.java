package placewise.yarn;

/** The adapter in a JVM that has just started, until a first gang has its place. Prints WARM before it asks for the gang. */
public final class ColdStart extends WholeAdapter {
  static final String WARM = "the adapter is warm";

  public static void main(String[] arguments) throws Exception {
    ColdStart cold = new ColdStart();
    cold.startTheService();
    cold.service.placeOn("n1");
    cold.start("n1");
    System.out.println(WARM);
    Ask ask = cold.submit(1, 2);
    until(() -> ask.accepts("n1"));
    System.exit(0);
  }
}
