"""The programs that heap profilers are measured on: a server under load, Python, a compiler, a database, and threads that do
nothing but allocate. Each does the same work in each run. Used by heap-instructions.py."""

import os
import shutil
import socket
import subprocess
import threading
import time

MALLOCS = """#include <pthread.h>
#include <stdlib.h>
static void *work(void *argument) {
    for (int i = 0; i < ROUNDS; i++) {
        volatile char *block = malloc(16 + i % 2000);
        block[0] = 1;
        free((void *)block);
    }
    return argument;
}
int main(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    return 0;
}
"""
DICTS = """kept = []
for number in range(ROUNDS):
    kept.append({"name": str(number), "values": [number] * 5})
    if number % 3 == 0:
        kept.pop()
"""
BIG = """#include <iostream>
#include <map>
#include <regex>
#include <string>
#include <vector>
int main() {
    std::map<std::string, std::vector<int>> m;
    m["a"].push_back(1);
    return std::regex_match("a", std::regex("a*"));
}
"""
SMALL = """#include <map>
#include <string>
int main() {
    std::map<std::string, int> m;
    m["a"] = 1;
}
"""
ROWS = """create table t(a integer primary key, b text, c text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < ROUNDS)
insert into t select i, 'row ' || i, hex(i * 7919) from n;
create index x on t(c);
select count(*), sum(length(b)) from t join (select c as d from t order by c limit 50000) on c = d;
"""


class Program:
    """What is run, and what makes it work if it is a server."""

    def __init__(self, name, argv, environment=None, port=None, requests=0):
        self.name, self.argv, self.environment = name, argv, environment or {}
        self.port, self.requests = port, requests
        self.executable = os.path.realpath(shutil.which(argv[0]) or argv[0])

    def is_installed(self):
        return os.path.exists(self.executable) and (not self.port or bool(shutil.which("redis-benchmark")))

    def load(self):
        """Seconds that the requests took; the server is told to end."""
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                time.sleep(0.02)
        begin = time.monotonic()
        subprocess.run(["chrt", "-r", "5", "redis-benchmark", "-p", str(self.port), "-q", "-c", "30", "-n", str(self.requests), "-r", "200000", "-d", "300",
                        "-t", "set,lpush"], check=True, stdout=subprocess.DEVNULL)
        took = time.monotonic() - begin
        subprocess.run(["redis-cli", "-p", str(self.port), "shutdown", "nosave"], check=False, stdout=subprocess.DEVNULL)
        return took


    def run(self, argv, environment=None):
        """The output of a run under whatever; a server gets its requests."""
        command = self.argv
        if self.port:
            self.port = free_port()
            command = [*command, str(self.port)]
            threading.Thread(target=self.load).start()
        ran = subprocess.run([*argv, *command], env={**os.environ, **self.environment, **(environment or {})}, capture_output=True,
                             text=True, check=False)
        if ran.returncode:
            raise SystemExit(f"{self.name}: {ran.stderr[-1000:]}")
        return ran.stderr


def write(work, name, text, rounds=0):
    path = os.path.join(work, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace("ROUNDS", str(rounds)))
    return path


def output_of(*argv):
    if not shutil.which(argv[0]):
        return ""
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout.strip()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def programs(work, scale=1.0):
    """All of them; a scale below 1 makes the work less."""
    mallocs = os.path.join(work, "mallocs")
    source = write(work, "mallocs.c", MALLOCS, int(15_000_000 * scale))
    subprocess.run(["cc", "-g", "-O2", "-pthread", "-o", mallocs, source], check=True)
    dicts = write(work, "dicts.py", DICTS, int(1_500_000 * scale))
    rows = write(work, "rows.sql", ROWS, int(800_000 * scale))
    compiler, multiarch = (output_of("g++", f"-print-{what}") for what in ("prog-name=cc1plus", "multiarch"))
    return [
        Program("redis", ["/usr/bin/redis-server", "--save", "", "--appendonly", "no", "--dir", work, "--port"],
                port=True, requests=int(200_000 * scale)),
        Program("python3", ["/usr/bin/python3", dicts]),
        Program("python3, malloc", ["/usr/bin/python3", dicts], {"PYTHONMALLOC": "malloc"}),
        Program("cc1plus", [compiler, "-quiet", "-imultiarch", multiarch, "-O1", "-o", os.path.join(work, "big.s"),
                            write(work, "big.cc", BIG if scale >= 0.2 else SMALL)]),
        Program("sqlite3", ["/usr/bin/sqlite3", ":memory:", f".read {rows}"]),
        Program("malloc", [mallocs]),
    ]
