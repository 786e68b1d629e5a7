// Java frames of a stopped process with their pcs, as HotSpot's own walker finds them: what
// `jstack -v` of `jhsdb clhsdb` prints, without its search of the whole heap for locks.
import sun.jvm.hotspot.tools.StackTrace;

public class JavaFrames extends StackTrace {
    JavaFrames() {
        super(true, false);
    }

    public static void main(String[] pid) {
        new JavaFrames().execute(pid);
    }
}
