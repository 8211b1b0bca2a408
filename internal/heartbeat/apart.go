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
	"time"

	"golang.org/x/sys/unix"
)

const (
	// attendInterval is how often the speaker's process shows that it runs. Beats end when it has
	// not for MuteTime, which a node may be without a speaker for other reasons, too.
	attendInterval = 250 * time.Millisecond
	// leaveTime is for how long it may say goodbye.
	leaveTime = time.Second
)

// order tells the process of the beats one thing; the first has the settings, peers and keys.
type order struct {
	Settings *apartSettings `json:",omitempty"`
	Peers    *[]Peer        `json:",omitempty"`
	Keys     [][]byte       `json:",omitempty"`
	Answer   *wireAnswer    `json:",omitempty"`
	Leave    bool           `json:",omitempty"`
}

// apartSettings are those of Config that it needs.
type apartSettings struct {
	NodeName string
	Address  netip.Addr
	Port     uint16
	Timers   Timers
	Ordinary bool
}

// notice is one thing that it tells.
type notice struct {
	View  *View  `json:",omitempty"`
	Ask   string `json:",omitempty"`
	Error string `json:",omitempty"`
}

// apart is the process of the beats, as seen from the speaker's.
type apart struct {
	cmd  *exec.Cmd
	conn net.Conn
	out  *json.Encoder
}

// Process returns the id of the process of the beats. It returns an error while there is none.
func (h *Heartbeat) Process() (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.apart == nil {
		return 0, errors.New("no process of the heartbeats runs")
	}
	return h.apart.cmd.Process.Pid, nil
}

// errEnded is when the process of the beats did so by itself.
var errEnded = errors.New("the process of the heartbeats ended")

// runApart has a process of its own drive the detector until ctx is cancelled.
func (h *Heartbeat) runApart(ctx context.Context) error {
	h.shared.attended.Store(int64(boottime()))
	a, err := startApart(h.config.Command, h.memory)
	if err != nil {
		return fmt.Errorf("start the process of the heartbeats: %w", err)
	}
	defer a.conn.Close()
	h.pair(a)
	running, stop := context.WithCancel(ctx)
	defer stop()
	said, ended := make(chan error, 1), make(chan error, 1)
	go func() { said <- h.listen(a.conn) }()
	go func() {
		ended <- a.cmd.Wait()
		stop()
	}()
	go h.showAttendance(running)
	h.attend(running)
	h.pair(nil)
	if ctx.Err() != nil {
		a.tell(order{Leave: true})
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
func startApart(command []string, memory *os.File) (*apart, error) {
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
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("use a socket: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &apart{cmd, conn, json.NewEncoder(conn)}, nil
}

// pair gives the process what is known so far, and from now on what changes.
func (h *Heartbeat) pair(a *apart) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.apart = a
	if a == nil {
		return
	}
	c := &h.config
	a.tell(order{
		Settings: &apartSettings{c.NodeName, c.Address, c.Port, c.Timers, c.Ordinary},
		Peers:    h.peers.Load(), Keys: c.Keys,
	})
}

// tell has no deadline: the process reads at once, and an order that is lost would not be told
// again. It fails only when the process has ended, which is waited for.
func (a *apart) tell(o order) { _ = a.out.Encode(o) }

// listen takes what the process tells until it ends, and returns why it could not run if it said so.
func (h *Heartbeat) listen(conn net.Conn) error {
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
			case h.news <- struct{}{}:
			default:
			}
		case n.Ask != "":
			select {
			case h.asks <- n.Ask:
			default: // as the thread does
			}
		}
	}
}

// showAttendance tells the process of the beats that this one runs.
func (h *Heartbeat) showAttendance(ctx context.Context) {
	tick := time.NewTicker(attendInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			h.shared.attended.Store(int64(boottime()))
		}
	}
}
