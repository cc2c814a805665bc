package esttc.core;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** A token in a file of its own, as containers' secrets come. */
public final class TokenFile {
    private TokenFile() {}

    /**
     * Reads it.
     *
     * @throws IllegalArgumentException it cannot be read, or holds no token
     */
    public static String read(Path file, String setting) {
        String token;
        try {
            token = Files.readString(file).strip();
        } catch (IOException error) {
            throw new IllegalArgumentException("[" + setting + "] file [" + file + "] cannot be read", error);
        }
        if (token.isEmpty() || !token.chars().allMatch(one -> one > 0x20 && one < 0x7f)) {
            throw new IllegalArgumentException("[" + setting + "] file [" + file + "] must hold one line of visible ASCII");
        }
        return token;
    }
}
