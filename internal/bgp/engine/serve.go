// Package engine is the process that speaks BGP with one router, for the speaker that starts it. It runs one GoBGP
// server with one peer, which only dials: nothing listens, so no privilege is needed. It ends with its session.
//
// What a router sends is parsed here and nowhere else, by GoBGP: v4, because the v3 line lacks fixes for several remote
// crashes. A message that crashes GoBGP ends this process, whose peer is then the one to blame, and nothing else.
//
// The package decides nothing about addresses and peers. It reads addresses from the kernel and writes no route to it.
package engine

import (
	"encoding/gob"
	"errors"
	"os"
	"runtime/debug"
	"syscall"
	"unsafe"

	"github.com/holdfast-lb/holdfast/internal/child"
	"github.com/holdfast-lb/holdfast/internal/lb"
	"golang.org/x/sys/unix"
)

// Serve has the session that the speaker orders, which started this process. It returns nil when the speaker ordered it
// to leave or the session was lost, and an error when the speaker is gone or did not start it. Then the caller should
// exit at once: the kernel closes the connection without a NOTIFICATION, and a router with graceful restart keeps the
// routes (RFC 4724 section 4.2). It also ends with an error if GoBGP refuses what it should take: the next engine is
// given everything again.
func Serve() error {
	conn, err := child.Parent()
	if err != nil {
		return err
	}

	confined := confine()
	in, out := gob.NewDecoder(conn), gob.NewEncoder(conn)
	orders := make(chan lb.Order)
	go func() {
		defer close(orders)
		for {
			var o lb.Order
			if in.Decode(&o) != nil {
				return
			}

			orders <- o
		}
	}()

	o, open := <-orders
	if o.Peer == nil {
		return errors.New("the first order has no peer")
	}

	e, err := start(*o.Peer)
	if err != nil {
		return err
	}

	if confined != nil {
		e.warning = "it is less confined than it should be: " + confined.Error()
	}

	for open {
		if o.Leave != nil {
			return e.leave(*o.Leave)
		}

		notice, lost, err := e.obey(o)
		if err != nil {
			return err
		}

		_ = out.Encode(notice) // if the speaker is gone, there are no more orders
		if lost {
			return nil
		}

		select {
		case o, open = <-orders:
		case <-e.notes.wake:
			o = lb.Order{}
		}
	}

	return errors.New("the speaker is gone")
}

const (
	// garbage is how much of the heap may be garbage, in percent: an engine has little to do, and there is one for each
	// peer.
	garbage = 50
	// maxMemory is what an engine may have, far more than it needs for as many routes as it takes. One that grows
	// beyond ends itself, and not a container or a node.
	maxMemory = 512 << 20
)

// confine leaves this process what it needs: no capability, and not all memory. What is refused is no reason not to
// serve.
func confine() error {
	debug.SetGCPercent(garbage)
	limit := unix.Rlimit{Cur: maxMemory, Max: maxMemory}
	return errors.Join(dropCapabilities(), os.NewSyscallError("setrlimit", unix.Setrlimit(unix.RLIMIT_DATA, &limit)))
}

// dropCapabilities drops all: what dials routers needs none. It does nothing in a program with cgo, which only tests
// have.
func dropCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := syscall.AllThreadsSyscall(
		unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&none[0])),
		0,
	)
	if errno == 0 || errno == unix.ENOTSUP {
		return nil
	}

	return os.NewSyscallError("capset", errno)
}
