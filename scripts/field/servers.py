"""Preparing the programs that need more than a command, and reading their loads."""

import glob
import os
import re
import shutil
import socket

from process import Trouble, run, within


def postgres_bin(name):
    """Debian keeps the programs of each version in a folder of its own."""
    found = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return found[-1] if found else f"postgresql:{name}"


# The server refuses to run as root.
AS_POSTGRES = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
POSTGRES = [*AS_POSTGRES, postgres_bin("postgres"), "-D", "{dir}/data", "-k", "{dir}", "-c", "listen_addresses=",
            "-c", "fsync=off", "-c", "shared_buffers=64MB"]


def must(argv, timeout_s=120, **options):
    code, out, err = run(argv, timeout_s, **options)
    if code != 0:
        raise Trouble(f"{argv[0]}: exit code {code}: {(err or out).strip()[-200:]}")
    return out


def postgres_prepare(place):
    shutil.chown(place.dir, "postgres", "postgres")
    data = f"{place.dir}/data"
    must([*AS_POSTGRES, postgres_bin("initdb"), "-D", data, "-A", "trust", "-U", "postgres", "--no-sync"])
    server = place.start([word.format(dir=place.dir) for word in POSTGRES])
    try:
        within(60, lambda: postgres_ready(place), "postgres")
        must([postgres_bin("createdb"), "-h", place.dir, "-U", "postgres", "bench"])
        must([postgres_bin("pgbench"), "-q", "-i", "-s", "2", "-h", place.dir, "-U", "postgres", "bench"])
    finally:
        server.end()


def postgres_ready(place):
    return run([postgres_bin("pg_isready"), "-h", place.dir], 5)[0] == 0


def port_ready(place):
    try:
        socket.create_connection(("127.0.0.1", place.port), 1).close()
        return True
    except OSError:
        return False


def nginx_prepare(place):
    os.chmod(place.dir, 0o755)
    with open(f"{place.dir}/index.html", "w", encoding="ascii") as page:
        page.write("word " * 300)
    with open(f"{place.dir}/nginx.conf", "w", encoding="ascii") as conf:
        conf.write(f"""daemon off; worker_processes 2; user root; pid {place.dir}/pid; error_log {place.dir}/error.log;
events {{ worker_connections 512; }}
http {{ access_log off; gzip on; gzip_types *; gzip_min_length 1;
  server {{ listen 127.0.0.1:{place.port}; root {place.dir}; }} }}
""")


def dav1d_prepare(place):
    """A clip of some seconds, so often behind itself that the decoder does not end."""
    clip = f"{place.dir}/clip.obu"
    encoder = ["-c:v", "libsvtav1", "-preset", "10"]
    source = ["-f", "lavfi", "-i", "testsrc2=size=640x360:rate=30", "-t", "4", "-pix_fmt", "yuv420p"]
    must(["ffmpeg", "-nostdin", "-loglevel", "error", *source, *encoder, "-f", "obu", clip])
    with open(clip, "rb") as file:
        part = file.read()
    with open(f"{place.dir}/long.obu", "wb") as file:
        # It counts all frames before it decodes the first, so not more than a minute's.
        for _ in range(max(1, min(1000, 400_000_000 // len(part)))):
            file.write(part)
    os.remove(clip)


def dav1d_ready(place):
    return any(line.startswith("Decoded ") for _, line in place.group.lines)


def cc1plus_prepare(place):
    """A file that takes the compiler tens of seconds: many instances of library templates."""
    with open(f"{place.dir}/big.cpp", "w", encoding="ascii") as file:
        file.write("#include <map>\n#include <string>\n#include <regex>\n#include <functional>\n#include <algorithm>\n")
        file.write("#include <vector>\n#include <unordered_map>\ntemplate<int N> struct T { long v[N + 1]; int k = N;\n"
                   "  bool operator<(const T& o) const { return k < o.k; } };\n")
        for at in range(120):
            file.write(f"long f{at}(int n) {{ std::map<T<{at}>, std::vector<std::string>> m; std::regex r(\"a+b\");\n"
                       f"  for (int i = 0; i < n; i++) {{ T<{at}> t; t.k = i; m[t].push_back(std::to_string(i)); }}\n"
                       f"  std::vector<T<{at}>> v; for (auto& e : m) v.push_back(e.first);\n"
                       f"  std::sort(v.begin(), v.end()); std::function<long(int)> g = [&](int x) {{ return x + (long)v.size(); }};\n"
                       f"  return g(n) + std::regex_search(std::string(\"aab\"), r); }}\n")


def number(pattern, text):
    found = re.search(pattern, text)
    return float(found[1]) if found else None


def redis_rate(text, _place):
    """redis-benchmark --csv: test, rps, avg, min, p50, p95, p99, max."""
    rows = re.findall(r'^"[^"]*","([\d.]+)",(?:"[\d.]+",){4}"([\d.]+)","[\d.]+"', text, re.MULTILINE)
    if not rows:
        return None, None
    return sum(float(row[0]) for row in rows) / len(rows), max(float(row[1]) for row in rows)


def wrk_rate(text, _place):
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s)", text)
    scale = {"us": 1e-3, "ms": 1.0, "s": 1e3}
    return number(r"Requests/sec:\s+([\d.]+)", text), float(p99[1]) * scale[p99[2]] if p99 else None


def pgbench_rate(text, place):
    """tps from the report; p99 from its log: client, count, microseconds, ..."""
    times = []
    for path in glob.glob(f"{place.dir}/latency*"):
        with open(path, encoding="ascii") as log:
            times += [int(line.split()[2]) for line in log if len(line.split()) > 2]
        os.remove(path)
    times.sort()
    p99 = times[int(len(times) * 0.99)] / 1e3 if times else None
    return number(r"tps = ([\d.]+)", text), p99


def ops_rate(text, _place):
    """Our own loads: `RATE OPS P99_MS`."""
    found = re.search(r"RATE ([\d.]+) ([\d.]+)", text)
    return (float(found[1]), float(found[2])) if found else (None, None)
