"""What each program is: packages, building, starting, load, throughput, and its own truth.

In commands `{src}` is tests/fixtures/field, `{dir}` a folder for this program that goes
at the end, `{port}` a free port. What needs more than commands is in servers.py.
"""

import re
from dataclasses import dataclass, field

import servers
import shares

# Printed by our own scripts: seconds and rounds, both counted from their begin.
OPS = re.compile(r"^\s*OPS\s+([\d.]+)\s+(\d+)")
JAVA = ["java", "-XX:-UsePerfData", "-Xmx300m"]
C_ROOT = r"(__libc_start_call_main<__libc_start_main(_impl)?(@@\S+)?<_start)"
THREAD_ROOT = r"(start_thread<(__)?clone3?)"
NO_TABLES = ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]


@dataclass
class Program:
    """One row of the table."""

    name: str
    shows: str
    command: list
    packages: list = field(default_factory=list)
    needs: list = field(default_factory=list)  # commands that tell whether packages are there
    build: list = field(default_factory=list)
    prepare: object = None  # called with a Place before the start
    load: object = None  # a command that works for `{seconds}` s beside it
    read_load: object = None  # (its output, Place) -> (operations per second, p99 in ms)
    cost_load: object = None  # the same for cost, where that needs another form
    read_cost_load: object = None
    ready_s: float = 1.0
    ready: object = None  # asked until it says so of its Place; else `ready_s` is all there is to wait
    warm_s: float = 1.0
    ops: object = None  # OPS, ("each second", regex), ("counter", regex)
    pids: str = ""  # a regex for the names of the processes to profile; else the busiest
    pids_max: int = 1
    truth: list = field(default_factory=list)  # (regex of thread name, regex of its stack)
    runtime: str = ""  # "java": whose own walker is asked too
    own_shares: object = None  # reads the program's own truth of its shares from its lines
    short: bool = False  # part of the short form
    floor: float = 0.0  # least completeness in the short form, %
    source: str = "auto"  # who takes the samples of which completeness is told
    moments: float = 1.0  # times the usual number
    env: dict = field(default_factory=dict)

    def truth_of(self, thread_name):
        for name, stack in self.truth:
            if re.fullmatch(name, thread_name):
                return re.compile(stack)
        return None


def gcc(source, out, *flags, compiler="gcc", optimize="-O2"):
    return [compiler, optimize, *flags, "{src}/" + source, "-o", "{dir}/" + out, "-pthread", "-lm"]


def fixture(name, shows, source, *flags, compiler="gcc", optimize="-O2", args=(), **more):
    """A C or C++ program of tests/fixtures/field."""
    packages = {"gcc": ["gcc", "libc6-dev"], "g++": ["g++"], "clang": ["clang"],
                "musl-gcc": ["musl-tools"], "gfortran": ["gfortran"]}[compiler]
    flags = list(flags)
    libraries = [flag for flag in flags if flag.startswith("-l")]
    build = gcc(source, name, *[flag for flag in flags if flag not in libraries],
                compiler=compiler, optimize=optimize) + libraries
    if compiler == "musl-gcc":
        build.remove("-pthread")
    return Program(name, shows, ["{dir}/" + name, *args], packages + more.pop("packages", []),
                   [compiler], [build], ready_s=0.3, warm_s=0.3, **more)


def script(name, shows, command, packages, **more):
    return Program(name, shows, command, packages, [command[0]], ops=OPS, **more)


def pp_shares(lines):
    """`cost 628ns read 2.5% work 95.8% write 1.7% cpu 0.85` -> shares in percent, means."""
    rows = [re.search(r"read ([\d.]+)% work ([\d.]+)% write ([\d.]+)% cpu ([\d.]+)", line) for line in lines]
    rows = [[float(part) for part in row.groups()] for row in rows if row]
    if not rows:
        return None
    whole = sum(row[3] for row in rows) or 1
    return {name: sum(row[at] * row[3] for row in rows) / whole
            for at, name in enumerate(("read", "work", "write"))}


def told_shares(names):
    """`read 0.0123 write 0.0456 cpu 0.0789`, seconds since the line before -> shares in percent, and of the rest."""
    pattern = re.compile(" ".join(f"{re.escape(word)} ([\\d.]+)" for word in (*(name.split("::")[-1] for name in names), "cpu")))

    def read(lines):
        rows = [[float(part) for part in row.groups()] for row in map(pattern.search, lines) if row]
        *used, cpu = map(sum, zip(*rows)) if rows else [0]
        told = {name: 100 * part / cpu for name, part in zip(names, used)} if cpu else {}
        return {**told, shares.REST: 100 - sum(told.values())} if told else None
    return read


def noret_truth():
    inner = r"((sqrt\S*|leaf)\S*<)*loop_forever\S*<mid\S*<outer\S*<"
    return [(".*", f"{inner}(th<{THREAD_ROOT}|main<{C_ROOT})")]


PROGRAMS = [
    Program("redis", "a server of one thread, stripped", ["redis-server", "--port", "{port}", "--save", "", "--dir", "{dir}"],
            ["redis-server", "redis-tools"], ["redis-server", "redis-benchmark"],
            # One kind of request: of several, which take turns, two recordings would see different work.
            load=["redis-benchmark", "-p", "{port}", "-l", "-q", "-c", "30", "-n", "2000000", "-t", "get"],
            ready=servers.port_ready, cost_load=["timeout", "120", "redis-benchmark", "-p", "{port}", "--csv", "-c", "30", "-n", "100000", "-t",
                       "get,set,lpush"],
            read_cost_load=servers.redis_rate, short=True, floor=95),
    Program("redis-clocks", "the same, which tells the CPU time of its system calls",
            ["env", "LD_PRELOAD={dir}/clocks.so", "redis-server", "--port", "{port}", "--save", "", "--dir", "{dir}"],
            ["redis-server", "redis-tools", "gcc", "libc6-dev"], ["redis-server", "redis-benchmark", "gcc"],
            [["gcc", "-O2", "-shared", "-fPIC", "-o", "{dir}/clocks.so", "{src}/clocks.c"]],
            load=["redis-benchmark", "-p", "{port}", "-l", "-q", "-c", "30", "-n", "2000000", "-t", "get"],
            ready=servers.port_ready, own_shares=told_shares(["read", "write", "epoll_wait"])),
    Program("postgres", "a process per connection", servers.POSTGRES, ["postgresql", "postgresql-contrib"],
            [servers.postgres_bin("pgbench"), servers.postgres_bin("postgres")], prepare=servers.postgres_prepare,
            load=[servers.postgres_bin("pgbench"), "-h", "{dir}", "-U", "postgres", "-c", "4", "-T", "{seconds}", "-S",
                  "--log", "--log-prefix={dir}/latency", "bench"],
            read_load=servers.pgbench_rate, ready=servers.postgres_ready, pids=r"postgres", pids_max=3),
    Program("nginx", "worker processes that wait in epoll", ["nginx", "-c", "{dir}/nginx.conf", "-p", "{dir}"],
            ["nginx-light", "wrk"], ["nginx", "wrk"], prepare=servers.nginx_prepare,
            load=["wrk", "-t", "1", "-c", "30", "-d", "{seconds}s", "--latency", "http://127.0.0.1:{port}/"],
            read_load=servers.wrk_rate, ready=servers.port_ready, pids=r"nginx", pids_max=2, short=True, floor=95),
    Program("memcached", "threads that wait in epoll", ["memcached", "-u", "root", "-U", "0", "-p", "{port}", "-t", "3"],
            ["memcached", "python3"], ["memcached"], load=["python3", "{here}/memcached_load.py", "{port}", "{seconds}"],
            read_load=servers.ops_rate, ready=servers.port_ready),
    script("ruby", "stripped libruby", ["ruby", "{src}/work.rb"], ["ruby"], short=True, floor=95),
    script("php", "an interpreter, stripped", ["php", "{src}/work.php"], ["php-cli"]),
    script("php-jit", "code that PHP's JIT makes",
           ["php", "-d", "zend_extension=opcache", "-d", "opcache.enable_cli=1", "-d", "opcache.jit=tracing",
            "-d", "opcache.jit_buffer_size=64M", "{src}/work.php"], ["php-cli", "php-opcache"]),
    # Its clock is its CPU time, so its rounds are timed as they come.
    Program("lua", "a small interpreter", ["lua5.4", "{src}/work.lua"], ["lua5.4"], ["lua5.4"],
            ops=("counter", re.compile(r"^OPS\s+\S+\s+(\d+)")), short=True, floor=95),
    script("R", "an interpreter above BLAS", ["Rscript", "--vanilla", "{src}/work.R"], ["r-base-core"]),
    script("python-numpy", "an interpreter above OpenBLAS", ["/usr/bin/python3", "{src}/work_numpy.py"],
           # Not a command: that it is there shows here.
           ["python3-numpy"], build=[["/usr/bin/python3", "-c", "import numpy"]], env={"OPENBLAS_NUM_THREADS": "2"}),
    script("node", "code that V8 makes", ["node", "{src}/work.js"], ["nodejs"], warm_s=2.0),
    Program("java", "C2: code without frame pointers", [*JAVA, "-cp", "{dir}", "Bench"], ["openjdk-17-jdk-headless"],
            ["javac", "java"], [["javac", "-d", "{dir}", "{src}/Bench.java"]], warm_s=4, runtime="java"),
    Program("java-fp", "C2 with -XX:+PreserveFramePointer", [*JAVA, "-XX:+PreserveFramePointer", "-cp", "{dir}", "Bench"],
            ["openjdk-17-jdk-headless"], ["javac", "java"], [["javac", "-d", "{dir}", "{src}/Bench.java"]], warm_s=4,
            runtime="java"),
    Program("java-c1", "C1 only: -XX:TieredStopAtLevel=1", [*JAVA, "-XX:TieredStopAtLevel=1", "-cp", "{dir}", "Bench"],
            ["openjdk-17-jdk-headless"], ["javac", "java"], [["javac", "-d", "{dir}", "{src}/Bench.java"]], warm_s=3,
            runtime="java"),
    Program("go-gob", "goroutines that allocate", ["{dir}/gob"], ["golang-go"], ["go"],
            [["go", "build", "-o", "{dir}/gob", "{src}/gob.go"]], ops=("each second", re.compile(r"^(\d+)$")), warm_s=2),
    Program("go-gop", "goroutines, the same work", ["{dir}/gop"], ["golang-go"], ["go"],
            [["go", "build", "-o", "{dir}/gop", "{src}/gop.go"]], warm_s=2),
    Program("ffmpeg-x264", "threads of libx264, much assembly",
            ["ffmpeg", "-nostdin", "-loglevel", "error", "-progress", "pipe:1", "-stats_period", "0.5", "-f", "lavfi", "-i",
             "testsrc2=size=1280x720:rate=30", "-c:v", "libx264", "-threads", "3", "-f", "null", "-"],
            ["ffmpeg"], ["ffmpeg"], ops=("counter", re.compile(r"^frame=\s*(\d+)"))),
    Program("rust-rav1e", "an encoder in Rust: a pool of threads, much assembly",
            ["sh", "-c", "ffmpeg -nostdin -loglevel error -f lavfi -i testsrc2=size=640x360:rate=30 -pix_fmt yuv420p"
             " -f yuv4mpegpipe - | rav1e - --threads 3 --speed 8 --quiet -y --output /dev/null"],
            ["rav1e", "ffmpeg"], ["rav1e", "ffmpeg"], pids=r"rav1e", warm_s=2),
    Program("rust-threads", "threads of Rust that wake each other by channels", ["{dir}/threads"], ["rustc"], ["rustc"],
            [["rustc", "-O", "-C", "debuginfo=1", "-o", "{dir}/threads", "{src}/threads.rs"]], ops=OPS, own_shares=told_shares(["threads::work"])),
    Program("dav1d-1", "an AV1 decoder, one thread", ["dav1d", "--threads", "1", "-i", "{dir}/long.obu", "-o", "/dev/null"],
            ["dav1d", "ffmpeg"], ["dav1d", "ffmpeg"], prepare=servers.dav1d_prepare, ready=servers.dav1d_ready,
            ops=("counter", re.compile(r"Decoded (\d+)"))),
    Program("dav1d-3", "an AV1 decoder, threads that wait for each other's locks",
            ["dav1d", "--threads", "3", "-i", "{dir}/long.obu", "-o", "/dev/null"], ["dav1d", "ffmpeg"], ["dav1d", "ffmpeg"],
            prepare=servers.dav1d_prepare, ready=servers.dav1d_ready, ops=("counter", re.compile(r"Decoded (\d+)"))),
    Program("chromium", "many processes and threads, V8, Skia",
            ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--user-data-dir={dir}/profile",
             "--no-first-run", "--remote-debugging-port=0", "--enable-logging=stderr", "{src}/page.html"],
            ["chromium"], ["chromium"], ops=re.compile(r'"OPS ([\d.]+) (\d+)"'), ready_s=6, warm_s=2, pids_max=2, moments=0.6),
    Program("cc1plus", "a compiler at work", ["sh", "-c", "while :; do g++ -O2 -std=c++17 -c {dir}/big.cpp -o /dev/null; done"],
            ["g++"], ["g++"], prepare=servers.cc1plus_prepare, pids=r"cc1plus"),
    fixture("exceptions", "C++ exceptions: the program's own unwinder", "exc.cpp", compiler="g++", short=True, floor=88),
    fixture("musl", "a static program of musl", "musl.c", "-static", compiler="musl-gcc", short=True, floor=85,
            truth=[(".*", r"(.*<)?((sorter|fmt|alloc)<)?(th<start<__clone|main<libc_start_main_stage2<_start.*)")]),
    fixture("fibers", "boost.context: a stack per fiber", "boostctx.cpp", "-lboost_context", compiler="g++",
            packages=["libboost-context-dev"],
            truth=[(".*", rf"(.*<)?(main<{C_ROOT}|.*fiber_entry.*<make_fcontext)(<\[fiber\].*)?")]),
    Program("erlang", "Erlang's JIT", ["erl", "-noshell", "+S", "1", "-pa", "{dir}", "-s", "a", "start"], ["erlang-base"],
            ["erl", "erlc"], [["erlc", "-o", "{dir}", "{src}/a.erl"]], warm_s=2),
    fixture("noret", "functions that do not return, no unwind information", "noret.c", *NO_TABLES, "-fomit-frame-pointer",
            short=True, truth=noret_truth()),
    fixture("notables", "no unwind information, old return addresses on the stack", "notables.c", *NO_TABLES,
            compiler="clang", optimize="-O3", truth=[(".*", rf".*(?<![\w.])main<{C_ROOT}")]),
    fixture("rbp0-own", "rbp is 0 in a frame without unwind information", "rbp0.c", args=["own"], short=True,
            truth=[(".*", f"(work<)?loopf<outer<main<{C_ROOT}")]),
    fixture("rbp0-fiber", "the same on a stack of its own", "rbp0.c", short=True,
            truth=[(".*", r"(work<)?loopf<outer<(entry<)?(__start_context|\[fiber\]).*")]),
    fixture("recur", "100,000 frames", "recur.c", moments=0.2),
    fixture("draptv", "a realigned frame larger than the copied stack", "draptv.c", "-DSZ=66000", "-DAL=64"),
    fixture("altstack", "signal handlers on a stack of their own", "altstack.c", short=True),
    fixture("pp-10000", "two threads that wake each other, short turns", "pp.c", args=["10000"], own_shares=pp_shares),
    fixture("pp-60000", "two threads that wake each other", "pp.c", args=["60000"], own_shares=pp_shares, short=True, floor=95),
    fixture("ppn-60000", "pp without its own clock readings", "ppn.c", args=["60000"]),
    Program("python-chroot", "in an empty root, where its libraries' files are not", ["/usr/bin/python3", "{src}/chr.py"],
            ["python3"], ["/usr/bin/python3"]),
    Program("openssl-sha512", "rows that read below the stack pointer",
            ["openssl", "speed", "-seconds", "600", "-bytes", "16384", "sha512"], ["openssl"], ["openssl"], short=True, floor=90),
    Program("sbcl", "code of SBCL, without tables", ["sbcl", "--script", "{src}/work.lisp"], ["sbcl"], ["sbcl"]),
    Program("guile", "code of Guile's compiler and JIT", ["guile", "--no-auto-compile", "-s", "{src}/work.scm"], ["guile-3.0"], ["guile"]),
    Program("ghc", "code of GHC, whose stack is in rbp", ["{dir}/work"], ["ghc"], ["ghc"],
            [["ghc", "-v0", "-O", "-outputdir", "{dir}", "-o", "{dir}/work", "{src}/Work.hs"]]),
    Program("openmp", "gfortran with OpenMP, threads at a barrier", ["{dir}/omp"], ["gfortran"], ["gfortran"],
            [["gfortran", "-O2", "-fopenmp", "{src}/omp.f90", "-o", "{dir}/omp"]], ops=OPS, env={"OMP_NUM_THREADS": "3"}),
]
