package placewise.yarn;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.security.KeyStore;
import java.util.Collections;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.security.alias.CredentialProvider;
import org.apache.hadoop.security.alias.CredentialProviderFactory;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** Sources of the token, and addresses of the service that are refused. */
public final class SettingsTest {
  private static final String WORD = "changeit";
  private static final long BUDGET_MS = 30_000;
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  private static String refusal(Configuration configuration) {
    return assertThrows(IllegalArgumentException.class, () -> new Settings(configuration)).getMessage();
  }

  private static Configuration with(String name, String value) {
    Configuration configuration = Fakes.configuration("http://127.0.0.1:1");
    configuration.set(name, value);
    return configuration;
  }

  @Test
  public void aTokenThatEverybodyCanReadIsRefused() {
    assertTrue(refusal(with("placewise.token", "secret")).startsWith("placewise.token: everybody can read"));
  }

  @Test
  public void clearTextToAnotherMachineIsRefusedUnlessAllowed() {
    Configuration configuration = with("placewise.url", "http://192.0.2.1:8080");
    assertTrue(refusal(configuration).contains("is clear text to another machine"));
    configuration.set("placewise.allow-plaintext", "true");
    assertEquals("http://192.0.2.1:8080", new Settings(configuration).url);
  }

  @Test
  public void theTokenComesFromAFileEachTime() throws Exception {
    Path file = folder.newFile("token").toPath();
    Settings settings = new Settings(with("placewise.token-file", file.toString()));
    for (String token : new String[] {"first", "second"}) {
      Files.write(file, (token + "\n").getBytes());
      assertEquals(token, settings.token());
    }
  }

  /** As `hadoop credential create` stores it. */
  private Configuration keeping(String alias, String secret) throws Exception {
    Configuration configuration = with(CredentialProviderFactory.CREDENTIAL_PROVIDER_PATH,
        "localjceks://file" + new File(folder.getRoot(), "kept.jceks"));
    CredentialProvider provider = CredentialProviderFactory.getProviders(configuration).get(0);
    provider.createCredentialEntry(alias, secret.toCharArray());
    provider.flush();
    return configuration;
  }

  @Test
  public void theTokenComesFromHadoopsCredentialProvider() throws Exception {
    assertEquals("kept", new Settings(keeping(Settings.TOKEN, "kept")).token());
  }

  @Test
  public void aServiceWithACertificateOfTheTrustStoreIsAsked() throws Exception {
    String store = new File(folder.getRoot(), "store.p12").getPath();
    Process keytool = new ProcessBuilder(Paths.get(System.getProperty("java.home"), "bin", "keytool").toString(),
        "-genkeypair", "-keystore", store, "-storepass", WORD, "-storetype", "PKCS12", "-alias", "service", "-keyalg",
        "RSA", "-dname", "CN=service", "-ext", "SAN=ip:127.0.0.1").inheritIO().start();
    assertEquals(0, keytool.waitFor());
    try (StubService service = new StubService(context(store))) {
      Configuration configuration = keeping("placewise.trust-store-password", WORD);
      configuration.set("placewise.url", service.url());
      assertThrows(ServiceException.class, () -> asked(configuration));
      configuration.set("placewise.trust-store", store);
      asked(configuration);
      assertEquals(Collections.singletonList("yarn"), service.names());
    }
  }

  private static void asked(Configuration configuration) throws ServiceException {
    try (ServiceClient client = new ServiceClient(new Settings(configuration))) {
      client.cluster(BUDGET_MS);
    }
  }

  private static SSLContext context(String path) throws Exception {
    KeyStore store = KeyStore.getInstance("PKCS12");
    store.load(Files.newInputStream(Paths.get(path)), WORD.toCharArray());
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    keys.init(store, WORD.toCharArray());
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(keys.getKeyManagers(), null, null);
    return context;
  }
}
