package heartbeat

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// attendInterval is how often the speaker's process shows that it runs. Beats end when it has
	// not for MuteTime, which a node may be without a speaker for other reasons, too.
	keepaliveInterval = 250 * time.Millisecond
	// leaveTime is for how long it may say goodbye, or tell its stacks.
	leaveTime = time.Second
)

// order tells the process of the beats one thing; the first has the settings, peers and keys.
type order struct {
	Settings *childSettings `json:",omitempty"`
	Peers    *[]Peer        `json:",omitempty"`
	Keys     [][]byte       `json:",omitempty"`
	Answer   *wireAnswer    `json:",omitempty"`
	Leave    bool           `json:",omitempty"`
}

// apartSettings are those of Config that it needs.
type childSettings struct {
	NodeName string
	Address  netip.Addr
	Port     uint16
	Timers   Timers
	Ordinary bool
	// Calm is for how long it goes without real-time priority first.
	Cooldown time.Duration
}

// notice is one thing that it tells.
type notice struct {
	View    *View     `json:",omitempty"`
	Ask     *question `json:",omitempty"`
	Error   string    `json:",omitempty"`
	Overrun *overrun  `json:",omitempty"`
}

// apart is the process of the beats, as seen from the speaker's.
type child struct {
	cmd  *exec.Cmd
	conn net.Conn
	out  *json.Encoder
	// ended has how it did.
	ended chan error
}

// Process returns the id of the process of the beats. It returns an error while there is none.
func (h *Heartbeat) Process() (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.child == nil {
		return 0, errors.New("no process of the heartbeats runs")
	}
	return h.child.cmd.Process.Pid, nil
}

// errEnded is when the process of the beats did so by itself.
var errEnded = errors.New("the process of the heartbeats ended")

// runApart has a process of its own drive the detector until ctx is cancelled, and another one when that
// ends: until then the kernel refuses what comes, so that this node is mute and nothing moves for MuteTime.
func (h *Heartbeat) runChild(ctx context.Context) error {
	var r restarts
	for {
		began := boottime()
		err := h.runProcess(ctx, r.cooldown)
		if ctx.Err() != nil || !errors.Is(err, errEnded) {
			return err
		}
		r.ended(boottime() - began)
		h.shared.realtime.Store(false)
		h.shared.restarts.Add(1)
		h.config.Log.Error("heartbeats ended and are started again", "error", err, "in", r.pause, "ordinaryFor", r.cooldown)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.pause):
		}
	}
}

// runProcess has one process drive the detector until ctx is cancelled or it ends.
func (h *Heartbeat) runProcess(ctx context.Context, calm time.Duration) error {
	h.shared.keepalive.Store(int64(boottime()))
	a, err := startChild(h.config.Command, h.memory)
	if err != nil {
		return fmt.Errorf("start the process of the heartbeats: %w", err)
	}
	defer a.conn.Close()
	h.attach(a, calm)
	running, stop := context.WithCancel(ctx)
	defer stop()
	said, ended := make(chan error, 1), make(chan error, 1)
	go func() { said <- h.readNotices(a.conn) }()
	go func() {
		ended <- <-a.ended
		stop()
	}()
	go h.keepAlive(running, a)
	h.dispatch(running)
	h.attach(nil, 0)
	if ctx.Err() != nil {
		a.send(order{Leave: true})
		defer time.AfterFunc(leaveTime, func() { _ = a.cmd.Process.Kill() }).Stop()
	}
	err = <-ended
	switch why := <-said; {
	case why != nil:
		return why
	case err != nil:
		return fmt.Errorf("%w: %w", errEnded, err)
	case ctx.Err() == nil:
		return errEnded
	}
	return nil
}

// startApart starts the process. It ends when it is told to, or when the other end of conn is gone.
func startChild(command []string, memory *os.File) (*child, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("create a pair of sockets: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "heartbeat"), os.NewFile(uintptr(fds[1]), "speaker")
	defer ours.Close()
	defer theirs.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{theirs, memory} // as Serve expects them
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("use a socket: %w", err)
	}
	a := &child{cmd, conn, json.NewEncoder(conn), make(chan error, 1)}
	started := make(chan error, 1)
	go a.run(started)
	if err := <-started; err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return a, nil
}

// run runs the process on one thread: with the thread that started it the process is killed
// (PR_SET_PDEATHSIG(2const)), for it may be in no state to see that nobody is at the other end of conn.
func (a *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := a.cmd.Start()
	started <- err
	if err == nil {
		a.ended <- a.cmd.Wait()
	}
}

// pair gives the process what is known so far, and from now on what changes.
func (h *Heartbeat) attach(a *child, calm time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.child = a
	if a == nil {
		return
	}
	c := &h.config
	a.send(order{
		Settings: &childSettings{c.NodeName, c.Address, c.Port, c.Timers, c.Ordinary, calm},
		Peers:    h.peers.Load(), Keys: c.Keys,
	})
}

// tell has no deadline: the process reads at once, and an order that is lost would not be told
// again. It fails only when the process has ended, which is waited for.
func (a *child) send(o order) { _ = a.out.Encode(o) }

// listen takes what the process tells until it ends, and returns why it could not run if it said so.
func (h *Heartbeat) readNotices(conn net.Conn) error {
	for in := json.NewDecoder(conn); ; {
		var n notice
		if err := in.Decode(&n); err != nil {
			return nil // how it ended is asked of the kernel
		}
		switch {
		case n.Error != "":
			return errors.New(n.Error)
		case n.View != nil:
			h.view.Store(n.View)
			select {
			case h.changed <- struct{}{}:
			default:
			}
		case n.Overrun != nil:
			h.config.Log.Warn("heartbeats took more CPU time than real-time priority is given for, and go on without it for a while",
				"why", n.Overrun.Why, "for", n.Overrun.Cooldown, "user", n.Overrun.User, "system", n.Overrun.System, "stacks", n.Overrun.Stacks)
		case n.Ask != nil:
			select {
			case h.asks <- *n.Ask:
			default: // as the thread does
			}
		}
	}
}

// showAttendance tells the process of the beats that this one runs, and ends it when no beats come of it.
func (h *Heartbeat) keepAlive(ctx context.Context, a *child) {
	tick := time.NewTicker(keepaliveInterval)
	defer tick.Stop()
	p := pulse{deadline: h.shared.lease.deadline.Load()}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.shared.keepalive.Store(int64(boottime()))
		}
		if p.lost(h.shared.lease.deadline.Load()) {
			h.config.Log.Error("no heartbeats are sent: their process is ended")
			_ = a.cmd.Process.Signal(syscall.SIGQUIT) // with its stacks, if it can
			defer time.AfterFunc(leaveTime, func() { _ = a.cmd.Process.Kill() }).Stop()
			<-ctx.Done()
			return
		}
	}
}
