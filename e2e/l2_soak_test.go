//go:build e2e && soak

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/e2e/lab"
	"github.com/holdfast-lb/holdfast/e2e/testbed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	// busyThreads load the machine that all nodes of the lab share.
	busyThreads = 4
	soakRounds  = 20
	soakTime    = 10 * time.Minute
)

// TestSoak injects layer 2 faults for about an hour while the machine is busy.
func TestSoak(t *testing.T) {
	e := setUp(t, providers["lab"], lab.ProxyNFTables)
	s := newStage(t, e)
	must(t, s.Restrict(t.Context()))
	ungrouped(t)
	busy(t)
	t.Run("PowerOffs", func(t *testing.T) { s.soakPowerOffs(t) })
	t.Run("Quiet", func(t *testing.T) { s.soakQuiet(t) })
}

// busy runs threads in endless loops for the rest of the test.
func busy(t *testing.T) {
	t.Helper()
	for range busyThreads {
		cmd := exec.Command("/bin/sh", "-c", "while :; do :; done")
		// The kernel kills it when this process ends.
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		must(t, cmd.Start())
		t.Cleanup(func() {
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
			_ = cmd.Wait() // its error is that it was killed
		})
	}
}

// autogroup is the sysctl that makes Linux schedule sessions as groups (sched(7), "The autogroup feature").
const autogroup = "/proc/sys/kernel/sched_autogroup_enabled"

// ungrouped makes the kernel schedule threads, not sessions, for the rest of the test, as it does on nodes that run
// systemd. In the lab each daemon has a session. With autogroup all daemons, the application and its clients sometimes
// did not run for up to 30 s while the busy threads ran (Linux 6.18).
func ungrouped(t *testing.T) {
	t.Helper()
	setting, err := os.ReadFile(autogroup)
	if errors.Is(err, fs.ErrNotExist) {
		return // a kernel without autogroup
	}
	must(t, err)
	// The kernel closes its standard input when the test process ends, in whatever way.
	restore := exec.Command("/bin/sh", "-c", `trap "" INT TERM; read end; echo "$1" > "$2"`, "restore",
		strings.TrimSpace(string(setting)), autogroup)
	end, err := restore.StdinPipe()
	must(t, err)
	must(t, restore.Start())
	t.Cleanup(func() {
		if err := errors.Join(end.Close(), restore.Wait()); err != nil {
			t.Errorf("restore %s: %v", autogroup, err)
		}
	})
	must(t, os.WriteFile(autogroup, []byte("0"), 0o644))
}

// soakPowerOffs powers off the owner repeatedly.
func (s *stage) soakPowerOffs(t *testing.T) {
	var gaps []time.Duration
	for i := range soakRounds {
		w := s.watch(t)
		owner, err := s.Stage.Owner(t.Context()) // read as late as possible: the end of a hold-down moves the addresses
		must(t, err)
		t.Cleanup(func() { s.ensureOn(t, owner) })
		start := time.Now()
		powerOff(t, s, owner)
		must(t, w.Recovered(t.Context(), time.Minute))
		seen, err := w.Stop()
		must(t, err)
		f := between(seen, start.Add(-time.Second), time.Now())
		t.Logf("soak: power-off %d of %d, busy machine: %s", i+1, soakRounds, f)
		gaps = append(gaps, f.gap)
		powerOn(t, s, owner)
		must(t, s.env.WaitReady(t.Context()))
	}
	slices.Sort(gaps)
	t.Logf("soak: %d power-offs, busy machine: median %s, longest %s", len(gaps), gaps[len(gaps)/2], gaps[len(gaps)-1])
	if worst := gaps[len(gaps)-1]; worst > promised {
		t.Errorf("no answer for %s, promised are %s", worst, promised)
	}
}

// soakQuiet injects no fault into the busy cluster: no node may be declared dead.
func (s *stage) soakQuiet(t *testing.T) {
	must(t, s.env.Calm(t.Context())) // the end of a hold-down may move the addresses
	owner, err := s.Stage.Owner(t.Context())
	must(t, err)
	mac, err := s.env.MAC(t.Context(), owner)
	must(t, err)
	must(t, testbed.Until(t.Context(), 2*time.Minute, "all speakers to see each other", s.allAlive))
	claims, err := s.env.Claims(t.Context(), testbed.Client, time.Second, s.Addresses...)
	must(t, err)
	before := s.deathVerdicts(t)
	must(t, testbed.Holds(t.Context(), soakTime, s.allAlive))
	if n := s.deathVerdicts(t) - before; n != 0 {
		t.Errorf("%v times a node was called dead, although all lived", n)
	}
	frames, err := claims.Stop()
	must(t, err)
	for _, c := range frames {
		if slices.Contains(s.Addresses, c.Address) && c.MAC != mac {
			t.Errorf("%s claimed %s at %s, although %s lived", c.MAC, c.Address, c.At, owner)
		}
	}
	t.Logf("soak: %s at that load, %d answers, all by %s", soakTime, len(frames), owner)
}

// deathVerdicts counts how often speakers received a verdict that they are dead.
func (s *stage) deathVerdicts(t *testing.T) (n float64) {
	t.Helper()
	for _, node := range s.env.Cluster.Nodes() {
		m, err := s.env.Metrics(t.Context(), node)
		must(t, err)
		n += m["holdfast_heartbeat_false_suspicions_total"]
	}
	return n
}

// allAlive checks that every speaker sees all others.
func (s *stage) allAlive(ctx context.Context) error {
	list, err := s.env.Resource(testbed.SpeakerStates).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, o := range list.Items {
		alive, _, err := unstructured.NestedInt64(o.Object, "status", "members", "alive")
		if err != nil {
			return err
		}
		expected, _, err := unstructured.NestedInt64(o.Object, "status", "members", "expected")
		if err != nil {
			return err
		}
		unreachable, _, err := unstructured.NestedSlice(o.Object, "status", "unreachable")
		if err != nil {
			return err
		}
		if alive != expected || len(unreachable) > 0 {
			return fmt.Errorf("the speaker of %s sees %d of %d, unreachable are %v", o.GetName(), alive, expected, unreachable)
		}
	}
	return nil
}
