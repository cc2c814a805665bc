package esttc.elasticsearch;

import esttc.core.SidecarConfig;
import esttc.core.TokenFile;
import esttc.core.Trust;

import org.elasticsearch.common.settings.SecureSetting;
import org.elasticsearch.common.settings.Setting;
import org.elasticsearch.common.settings.Setting.Property;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.core.TimeValue;
import org.elasticsearch.common.settings.SecureString;
import org.elasticsearch.common.unit.ByteSizeUnit;
import org.elasticsearch.common.unit.ByteSizeValue;

import java.net.URI;
import java.nio.file.Path;
import java.util.List;

/** The node's settings: all of them are read when it starts. */
final class TtcSettings {
    private static final String PREFIX = "ttc.sidecar.";

    static final Setting<String> URL = Setting.simpleString(PREFIX + "url", "", Property.NodeScope);
    static final Setting<List<String>> ALLOWED_HOSTS = Setting.stringListSetting(PREFIX + "allowed_hosts", SidecarConfig.LOOPBACK, Property.NodeScope);
    static final Setting<SecureString> TOKEN = SecureSetting.secureString(PREFIX + "token", null);
    static final Setting<String> TOKEN_FILE = Setting.simpleString(PREFIX + "token_file", "", Property.NodeScope);
    static final Setting<String> AUTHORITIES = Setting.simpleString(PREFIX + "certificate_authorities", "", Property.NodeScope);
    static final Setting<TimeValue> CONNECT_TIMEOUT = time("connect_timeout", TimeValue.timeValueMillis(500));
    static final Setting<TimeValue> TIMEOUT = time("timeout", TimeValue.timeValueSeconds(1));
    static final Setting<TimeValue> MAX_TIMEOUT = time("max_timeout", TimeValue.timeValueSeconds(10));
    static final Setting<Integer> MAX_IN_FLIGHT = Setting.intSetting(PREFIX + "max_in_flight", 64, 1, 10_000, Property.NodeScope);
    static final Setting<ByteSizeValue> MAX_FRAME = bytes("max_frame", ByteSizeValue.of(32, ByteSizeUnit.MB));
    static final Setting<ByteSizeValue> MAX_MEMORY = Setting.memorySizeSetting(PREFIX + "max_memory", "10%", Property.NodeScope);
    static final Setting<Integer> BREAKER_FAILURES = Setting.intSetting(PREFIX + "breaker.failures", 5, 1, 1000, Property.NodeScope);
    static final Setting<TimeValue> BREAKER_PAUSE = time("breaker.pause", TimeValue.timeValueSeconds(5));

    static final List<Setting<?>> ALL = List.of(
        URL,
        ALLOWED_HOSTS,
        TOKEN,
        TOKEN_FILE,
        AUTHORITIES,
        CONNECT_TIMEOUT,
        TIMEOUT,
        MAX_TIMEOUT,
        MAX_IN_FLIGHT,
        MAX_FRAME,
        MAX_MEMORY,
        BREAKER_FAILURES,
        BREAKER_PAUSE
    );

    private TtcSettings() {}

    /**
     * Reads the settings.
     *
     * @throws IllegalArgumentException naming the setting that cannot work
     */
    static SidecarConfig read(Settings settings, Path configFolder) {
        String url = URL.get(settings);
        String authorities = AUTHORITIES.get(settings);
        return new SidecarConfig(
            url.isEmpty() ? null : URI.create(url),
            token(settings, configFolder),
            ALLOWED_HOSTS.get(settings),
            authorities.isEmpty() ? null : Trust.of(configFolder.resolve(authorities), AUTHORITIES.getKey()),
            CONNECT_TIMEOUT.get(settings).millis(),
            TIMEOUT.get(settings).millis(),
            MAX_TIMEOUT.get(settings).millis(),
            MAX_IN_FLIGHT.get(settings),
            MAX_FRAME.get(settings).getBytes(),
            MAX_MEMORY.get(settings).getBytes(),
            BREAKER_FAILURES.get(settings),
            BREAKER_PAUSE.get(settings).millis()
        );
    }

    private static String token(Settings settings, Path configFolder) {
        String file = TOKEN_FILE.get(settings);
        try (SecureString kept = TOKEN.get(settings)) {
            if (kept.length() > 0) {
                return kept.toString();
            }
        }
        return file.isEmpty() ? null : TokenFile.read(configFolder.resolve(file), TOKEN_FILE.getKey());
    }

    private static Setting<TimeValue> time(String name, TimeValue value) {
        return Setting.timeSetting(PREFIX + name, value, TimeValue.timeValueMillis(1), Property.NodeScope);
    }

    private static Setting<ByteSizeValue> bytes(String name, ByteSizeValue value) {
        return Setting.byteSizeSetting(PREFIX + name, value, Property.NodeScope);
    }
}
