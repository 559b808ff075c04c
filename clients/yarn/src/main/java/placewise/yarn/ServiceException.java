package placewise.yarn;

import java.io.IOException;

/** The service gave no usable answer. */
final class ServiceException extends IOException {
  private static final long serialVersionUID = 1L;
  /** HTTP status, or 0 if there was no answer. */
  final int status;

  ServiceException(int status, String message) {
    super(message);
    this.status = status;
  }

  /** Whether the service will refuse the same question again. */
  boolean isRefusal() {
    return status == 400;
  }
}
