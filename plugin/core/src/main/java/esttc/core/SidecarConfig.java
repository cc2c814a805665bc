package esttc.core;

import java.net.URI;
import java.util.List;
import java.util.Locale;

import javax.net.ssl.SSLContext;

/**
 * Where the sidecar is and what it may cost; from the node's settings, never from a request.
 *
 * @param url its address, or null where there is none
 * @param token what it is shown, or null
 * @param allowedHosts hosts that an address may name
 * @param tls how an https address is trusted; null takes Java's own authorities
 * @param connectMs for a connection
 * @param timeoutMs for the scores of a window whose search names no time
 * @param maxTimeoutMs the longest time that a search may ask for: a search thread waits no longer
 * @param maxInFlight windows that wait for the sidecar at the same time
 * @param maxFrameBytes the largest frame
 * @param maxBytes bytes of features in memory at the same time, over all windows
 * @param failuresToOpen failures in a row that open the circuit breaker
 * @param pauseMs how long it stays open
 */
public record SidecarConfig(
    URI url,
    String token,
    List<String> allowedHosts,
    SSLContext tls,
    long connectMs,
    double timeoutMs,
    double maxTimeoutMs,
    int maxInFlight,
    long maxFrameBytes,
    long maxBytes,
    int failuresToOpen,
    long pauseMs
) {
    /** Hosts that need no word of the operator. */
    public static final List<String> LOOPBACK = List.of("127.0.0.1", "localhost", "[::1]");

    /**
     * Refuses an address that is none, or whose host is not on the list.
     *
     * @throws IllegalArgumentException naming the setting and the fix
     */
    public SidecarConfig {
        if (url != null) {
            String scheme = url.getScheme() == null ? "" : url.getScheme().toLowerCase(Locale.ROOT);
            if (!scheme.equals("http") && !scheme.equals("https") || url.getHost() == null || url.getUserInfo() != null
                || url.getQuery() != null || url.getFragment() != null) {
                throw new IllegalArgumentException(
                    "[ttc.sidecar.url] must be an address such as http://127.0.0.1:9280, without user, query or fragment"
                );
            }
            if (!allowedHosts.contains(url.getHost())) {
                throw new IllegalArgumentException(
                    "[ttc.sidecar.url] names host [" + url.getHost() + "], which [ttc.sidecar.allowed_hosts] " + allowedHosts
                        + " does not hold: add it there"
                );
            }
        }
    }

    /** Where one of its interfaces is. */
    public URI endpoint(String name) {
        String base = url.toString();
        return URI.create((base.endsWith("/") ? base.substring(0, base.length() - 1) : base) + "/_ttc/" + name);
    }
}
