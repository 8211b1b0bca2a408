package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// runDir holds everything the lab keeps, programs included; Down removes it. It is not below /run: Debian allows no
// programs there, and little space.
const runDir = "/var/lib/holdfast-lab"

// ErrNotUp and ErrUp mean that the lab is not in the state that a command needs.
var (
	ErrNotUp = errors.New("the lab is not up")
	ErrUp    = errors.New("the lab is already up")
)

// lockName is an abstract socket: the kernel frees it when its holder ends, in
// whatever way, and it leaves no file.
const lockName = "@holdfast-lab"

// lock keeps other processes from changing the lab at the same time.
func lock(ctx context.Context) (unlock func() error, err error) {
	var l net.Listener
	var failure error
	err = waitFor(ctx, time.Minute, func() error {
		l, failure = net.Listen("unix", lockName)
		if errors.Is(failure, syscall.EADDRINUSE) {
			return failure
		}
		return nil
	})
	if err = errors.Join(err, failure); err != nil {
		return nil, fmt.Errorf("wait for another command that changes the lab: %w", err)
	}
	return l.Close, nil
}

func stateFile() string { return filepath.Join(runDir, "state.json") }

// save makes the lab visible to Open; Up does it last.
func (l *Lab) save() error {
	b, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	tmp := stateFile() + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, stateFile())
}

// Open returns the running lab. One of which every process ended, killed or with the machine, is not up.
func Open() (*Lab, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("open lab: must be root")
	}
	b, err := os.ReadFile(stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotUp
	}
	if err != nil {
		return nil, fmt.Errorf("open lab: %w", err)
	}
	var l Lab
	if err := json.Unmarshal(b, &l); err != nil {
		return nil, fmt.Errorf("open lab: %w", err)
	}
	if running, err := runs(); err != nil {
		return nil, fmt.Errorf("open lab: %w", err)
	} else if !running {
		return nil, ErrNotUp
	}
	return &l, nil
}
