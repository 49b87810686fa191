import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's command-line tools one after another in one JVM.
 *
 * Reads one line per run: the time limit in milliseconds and, in base64, the tool's input, class and arguments,
 * separated by tabs. Prints the exit status and, in base64, standard output and standard error. If
 * a tool calls System.exit, only the tool ends: its later output is dropped, and its shutdown hooks are run.
 */
public final class ToolRunner {
    private static final int TIMED_OUT = -1;

    private ToolRunner() {
    }

    /** Thrown by System.exit instead of ending the JVM. */
    private static final class Ended extends Error {
        private static final long serialVersionUID = 1L;

        Ended() {
            super("ended", null, false, false);
        }
    }

    /** A stream whose target can be replaced, because libraries keep the first stream that they get. */
    private static final class Switch extends OutputStream {
        private ByteArrayOutputStream target = new ByteArrayOutputStream();
        private boolean open = true;

        @Override
        public synchronized void write(int value) {
            if (open) {
                target.write(value);
            }
        }

        @Override
        public synchronized void write(byte[] data, int offset, int length) {
            if (open) {
                target.write(data, offset, length);
            }
        }

        synchronized void setOpen(boolean value) {
            open = value;
        }

        synchronized byte[] take() {
            byte[] taken = target.toByteArray();
            target = new ByteArrayOutputStream();
            open = true;
            return taken;
        }
    }

    private static final Switch OUT = new Switch();
    private static final Switch ERR = new Switch();
    private static final List<Runnable> HOOKS = new ArrayList<>();
    private static volatile Integer status;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(new PrintStream(OUT, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(ERR, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((code, message) -> end(code));
        Exit.setHaltProcedure((code, message) -> end(code));
        Exit.setShutdownHookAdder((name, hook) -> {
            synchronized (HOOKS) {
                HOOKS.add(hook);
            }
        });
        Base64.Encoder encoder = Base64.getEncoder();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] parts = line.split("\t", -1);
            int code = run(Long.parseLong(parts[0]), parts);
            answers.println(
                code + "\t" + encoder.encodeToString(OUT.take()) + "\t" + encoder.encodeToString(ERR.take()));
            answers.flush();
        }
    }

    private static void end(int code) {
        if (status == null) {
            status = code;
            OUT.setOpen(false);
            ERR.setOpen(false);
        }
        throw new Ended();
    }

    private static int run(long timeoutMs, String[] parts) throws Exception {
        Base64.Decoder decoder = Base64.getDecoder();
        System.setIn(new ByteArrayInputStream(decoder.decode(parts[1])));
        String[] arguments = new String[parts.length - 3];
        for (int index = 0; index < arguments.length; index++) {
            arguments[index] = new String(decoder.decode(parts[index + 3]), StandardCharsets.UTF_8);
        }
        String className = new String(decoder.decode(parts[2]), StandardCharsets.UTF_8);
        status = null;
        Thread tool = new Thread(() -> call(className, arguments), "tool");
        tool.setDaemon(true);
        tool.start();
        tool.join(timeoutMs);
        boolean late = tool.isAlive();
        runHooks(timeoutMs);
        if (late) {
            tool.interrupt();
            tool.join(timeoutMs);
            return TIMED_OUT;
        }
        Integer found = status;
        return found == null ? 0 : found;
    }

    private static void runHooks(long timeoutMs) throws InterruptedException {
        List<Runnable> hooks;
        synchronized (HOOKS) {
            hooks = new ArrayList<>(HOOKS);
            HOOKS.clear();
        }
        OUT.setOpen(true);
        ERR.setOpen(true);
        for (Runnable hook : hooks) {
            Thread thread = new Thread(hook, "hook");
            thread.setDaemon(true);
            thread.start();
            thread.join(timeoutMs);
        }
    }

    private static void call(String className, String[] arguments) {
        try {
            Class.forName(className).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            failed(thrown.getCause());
        } catch (ReflectiveOperationException thrown) {
            failed(thrown);
        }
    }

    /** Prints an uncaught exception as the JVM does. */
    private static void failed(Throwable thrown) {
        if (status == null) {
            System.err.print("Exception in thread \"main\" ");
            thrown.printStackTrace();
            status = 1;
        }
    }
}
