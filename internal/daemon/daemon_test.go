package daemon

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/internal/nstest"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func parse(t *testing.T, args ...string) (Settings, error) {
	t.Helper()
	t.Setenv("POD_NAMESPACE", "")
	var s Settings
	f := flag.NewFlagSet("test", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	s.Define(f, ":1")
	return s, s.Parse(f, args)
}

func TestParse(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--namespace=ns", "surplus"},
		{"--namespace=ns", "--no-such-flag"},
		{"--namespace=ns", "--log-level=loud"},
		{"--namespace=ns", "--metrics-listen=9217"},
		{"--namespace=ns", "--metrics-listen=127.0.0.1:9219"},
		{"--namespace=ns", "--metrics-listen=:9219"},
		{"--namespace=ns", "--health-listen=[::]:9219"},
	} {
		if _, err := parse(t, args...); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	if _, err := parse(t, "--version"); !errors.Is(err, errVersion) {
		t.Errorf("--version: %v", err)
	}
	s, err := parse(t, "--namespace=ns", "--log-level=debug", "--members-secret=keys")
	if err != nil || s.Namespace != "ns" || s.LogLevel != slog.LevelDebug || s.MembersSecret != "keys" ||
		s.HealthListen != ":1" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestMainCodes(t *testing.T) {
	for _, tt := range []struct {
		parsed, served error
		want           int
	}{
		{nil, nil, 0},
		{flag.ErrHelp, nil, 0},
		{errVersion, errors.New("served"), 0},
		{errors.New("bad flag"), nil, 2},
		{nil, errors.New("broken"), 1},
	} {
		got := Main("test", &Settings{LogLevel: slog.LevelError + 1}, func() error { return tt.parsed },
			func(context.Context, *slog.Logger) error { return tt.served })
		if got != tt.want {
			t.Errorf("parse %v, serve %v: exit code %d, want %d", tt.parsed, tt.served, got, tt.want)
		}
	}
}

func TestBuild(t *testing.T) {
	version, commit, date = "1.2.3", "8fd0094", "2026-11-23T00:00:00Z"
	want := `# HELP holdfast_build_info The build of the program; the value is always 1.
# TYPE holdfast_build_info gauge
holdfast_build_info{commit="8fd0094",date="2026-11-23T00:00:00Z",goversion="` + runtime.Version() + `",version="1.2.3"} 1
`
	must(t, testutil.CollectAndCompare(BuildInfo(), strings.NewReader(want)))
	if got := buildOf("speaker"); !strings.HasPrefix(got, "speaker 1.2.3, commit 8fd0094 of 2026-11-23T00:00:00Z, ") {
		t.Error(got)
	}
}

// TestHangTimer: an operation hangs once its threads had enough time to run, whatever the wall clock shows.
func TestHangTimer(t *testing.T) {
	for _, tt := range []struct {
		name  string
		delay time.Duration // the wait for a core in each second
		want  int           // looks; 0 for never
	}{
		{"it sleeps", 0, 10},
		{"it waits for a core half of the time", 500 * time.Millisecond, 20},
		{"it gets no core", time.Second, 0},
		{"several threads wait", 3 * time.Second, 0},
	} {
		var timer HangTimer
		hung := 0
		for look := 1; look <= 1000 && hung == 0; look++ {
			if timer.Advance(time.Second, time.Duration(look)*tt.delay) >= 10*time.Second {
				hung = look
			}
		}
		if hung != tt.want {
			t.Errorf("%s: after %d looks, want %d", tt.name, hung, tt.want)
		}
	}
	var timer HangTimer
	for range 1000 {
		if timer.Reset(); timer.Advance(time.Second, 0) > time.Second {
			t.Fatal("it answers")
		}
	}
}

// TestSchedDelay: the kernel counts the time that threads wait for a core.
func TestSchedDelay(t *testing.T) {
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("this kernel does not")
	}
	before := SchedDelay(os.Getpid())
	var done atomic.Bool
	for range 4 * runtime.NumCPU() {
		go func() {
			runtime.LockOSThread() // many threads, more than cores
			for !done.Load() {
			}
		}()
	}
	defer done.Store(true)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4 * runtime.NumCPU()))
	nstest.Until(t, time.Minute, "threads have waited", func() bool {
		return SchedDelay(os.Getpid()) > before+10*time.Millisecond
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
