"""Programs to be profiled: C, Go, Python, JavaScript, Java."""

WORK_C = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
volatile double x;
__attribute__((noinline)) void hot(int n) { for (int i = 0; i < n; i++) x += i * 0.5; }
__attribute__((noinline)) void warm(int n) { for (int i = 0; i < n; i++) x *= 1.0001; }
__attribute__((noinline)) void touch(void) { char *p = malloc(32 << 20); memset(p, 1, 32 << 20); free(p); }
void *thread(void *a) { for (int i = 0; i < 60; i++) { hot(3000000); warm(1000000); } return a; }
int main(void) {
    pthread_t p;
    pthread_create(&p, 0, thread, 0);
    pthread_setname_np(p, "pool 3");
    for (int i = 0; i < 30; i++) { hot(3000000); warm(3000000); touch(); }
    return pthread_join(p, 0);
}
"""

WORK_GO = """
package main

import (
	"os"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"
)

var keep [][]byte
var sum float64

//go:noinline
func hot(n int) { for i := 0; i < n; i++ { sum += float64(i) * 0.5 } }

//go:noinline
func allocate(n int) { for i := 0; i < n; i++ { keep = append(keep, make([]byte, 4096)) } }

func main() {
	runtime.SetBlockProfileRate(1)
	runtime.SetMutexProfileFraction(1)
	f, _ := os.Create("cpu.pb.gz")
	pprof.StartCPUProfile(f)
	var lock sync.Mutex
	var all sync.WaitGroup
	for g := 0; g < 4; g++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < 20; i++ { lock.Lock(); hot(3000000); allocate(200); lock.Unlock() }
		}()
	}
	go func() { time.Sleep(time.Hour) }()
	all.Wait()
	pprof.StopCPUProfile()
	f.Close()
	for _, kind := range []string{"heap", "allocs", "goroutine", "mutex", "block", "threadcreate"} {
		f, _ := os.Create(kind + ".pb.gz")
		pprof.Lookup(kind).WriteTo(f, 0)
		f.Close()
	}
}
"""

WORK_PY = """
import threading
def hot(n):
    s = 0.0
    for i in range(n): s += i * 0.5
    return s
def warm(n):
    return [i for i in range(n)]
def work():
    for _ in range(25): hot(300000); warm(200000)
t = threading.Thread(target=work, name="pool 3"); t.start(); work(); t.join()
"""

WORK_JS = """
function hot(n) { let s = 0; for (let i = 0; i < n; i++) s += i * 0.5; return s; }
function warm(n) { return Array.from({length: n}, (_, i) => ({i})).map(o => o.i); }
function work() { for (let i = 0; i < 60; i++) { hot(3000000); warm(50000); } }
work();
"""

WORK_JAVA = """
public class Work {
    static double sum;
    static void hot(int n) { for (int i = 0; i < n; i++) sum += Math.sin(i); }
    static void warm(int n) { StringBuilder b = new StringBuilder(); for (int i = 0; i < n; i++) b.append(i); sum += b.length(); }
    public static void main(String[] a) { for (int i = 0; i < 60; i++) { hot(1000000); warm(200000); } }
}
"""
